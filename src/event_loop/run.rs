//! Runs one entry of the ready queue.

use super::core::{Core, Entry};
use super::debug;
use super::entries::into_handle;
use super::handle::layout::HandleRef;
use super::handle::run::run_foreign;
use crate::capi::call::{call0, in_context};
use crate::capi::error::{raise, take_unless_fatal};
use crate::capi::recycle::futures::drop_future;
use crate::capi::{Fatal, Raised, Ref};

#[inline(always)]
pub(super) fn run(core: &Core, entry: Entry) -> Result<(), Fatal> {
    if core.instrumentation.is_active() { run_instrumented(core, entry) } else { run_plain(core, entry) }
}

#[inline(always)]
fn run_plain(core: &Core, entry: Entry) -> Result<(), Fatal> {
    match entry {
        Entry::Call { callback, argument, context } => {
            let result = in_context(&context, || match &argument {
                Some(argument) => callback.call_with([argument.borrow()]),
                None => call0(&callback),
            });
            match result {
                Ok(_) => {
                    if let Some(argument) = argument {
                        drop_future(argument);
                    }
                    Ok(())
                }
                Err(raised) => core.report_call(callback, argument, context, raised),
            }
        }
        Entry::Handle(handle) => handle.run().or_else(|raised| core.report_handle(&handle, raised)),
        Entry::Native { object, run } => run(&object, core),
        Entry::Foreign(handle) => run_reported(core, &handle),
    }
}

/// Runs a foreign handle. Its `_run` reports errors itself; an error that it raises is printed.
fn run_reported(core: &Core, handle: &Ref) -> Result<(), Fatal> {
    run_foreign(handle).or_else(|raised| {
        raise(take_unless_fatal()?);
        core.unraisable(raised)
    })
}

/// Runs an entry in debug mode, or with a patched `asyncio.Handle._run`, which has to be called for every callback.
#[cold]
fn run_instrumented(core: &Core, entry: Entry) -> Result<(), Fatal> {
    let entry = if core.instrumentation.patches_handle_run() {
        super::entries::from_handle(into_handle(core, entry).map_err(|Raised| Fatal)?)
    } else {
        entry
    };
    let debug = core.is_debug();
    match entry {
        Entry::Handle(handle) if handle.is_cancelled() => Ok(()),
        Entry::Handle(handle) if debug => {
            debug::callback(core, handle.object(), || run_by_patch(core, &handle, true))?;
            handle.finish_run();
            Ok(())
        }
        Entry::Handle(handle) => run_by_patch(core, &handle, false),
        Entry::Foreign(handle) if debug => debug::callback(core, &handle, || run_reported(core, &handle)),
        Entry::Native { object, run } if debug => debug::native(core, &object, || run(&object, core)),
        // In debug mode, this is a callback that C code has queued before the mode was switched on.
        other => run_plain(core, other),
    }
}

/// Runs a handle, by the patch of `asyncio.Handle._run` if there is one. In debug mode the handle keeps its callback,
/// so that the log can name it.
fn run_by_patch(core: &Core, handle: &HandleRef, debug: bool) -> Result<(), Fatal> {
    // An error that the patch raises ends the run, as in asyncio.
    if handle.run_by_patch().map_err(|Raised| Fatal)? {
        if !debug {
            handle.finish_run();
        }
        return Ok(());
    }
    let result = if debug { handle.run_debug() } else { handle.run() };
    result.or_else(|raised| core.report_handle(handle, raised))
}
