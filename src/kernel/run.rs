//! Runs entries of the ready queue.

use super::core::{Core, Entry};
use super::debug;
use super::entries::into_handle;
use super::handle::layout::HandleRef;
use super::handle::run::run_foreign;
use super::observe::probe::{self, Batch};
use crate::capi::call::{call0, in_context, run_in_other};
use crate::capi::error::{raise, take_unless_fatal};
use crate::capi::recycle::futures::drop_future;
use crate::capi::{Fatal, Raised, Ref};

/// Runs the next `count` entries of the queue, which are of this batch.
#[inline(always)]
pub(super) fn run_next(core: &Core, count: usize, batch: &mut Batch) -> Result<(), Fatal> {
    for left in (0..count).rev() {
        let Some(entry) = core.ready.pop() else { break };
        if core.instrumentation.sees_runs() {
            return run_seen(core, entry, left, batch);
        }
        run_plain(core, entry, batch)?;
        core.end_step()?;
    }
    Ok(())
}

/// Runs an entry that was in the queue.
#[inline(always)]
pub(super) fn run(core: &Core, entry: Entry, batch: &mut Batch) -> Result<(), Fatal> {
    if core.instrumentation.sees_runs() {
        run_seen(core, entry, 0, batch)
    } else {
        run_plain(core, entry, batch)?;
        core.end_step()
    }
}

/// Runs entries that have to be seen: this one, and the next `left`.
#[cold]
fn run_seen(core: &Core, mut entry: Entry, mut left: usize, batch: &mut Batch) -> Result<(), Fatal> {
    loop {
        probe::around_entry(core, entry, |entry| match core.instrumentation.is_active() {
            true => run_instrumented(core, entry, batch),
            false => run_plain(core, entry, batch),
        })?;
        core.end_step()?;
        if left == 0 {
            return Ok(());
        }
        let Some(next) = core.ready.pop() else { return Ok(()) };
        (entry, left) = (next, left - 1);
    }
}

#[inline(always)]
fn run_plain(core: &Core, entry: Entry, batch: &mut Batch) -> Result<(), Fatal> {
    let mut after = |work: &Ref| probe::entry_ran(core, work, batch);
    match entry {
        Entry::Call { callback, argument, context } => {
            let result = in_context(&context, || match &argument {
                Some(argument) => callback.call_with([argument.borrow()]),
                None => call0(&callback),
            });
            match result {
                Ok(_) => {
                    let noted = after(&callback).map_err(|Raised| Fatal);
                    if let Some(argument) = argument {
                        drop_future(argument);
                    }
                    noted
                }
                Err(raised) => {
                    let given = argument.as_ref().map(Ref::borrow);
                    match run_in_other(&context, &callback, given.as_slice(), raised) {
                        Ok(()) => after(&callback).map_err(|Raised| Fatal),
                        Err(raised) => core.report_call(callback, argument, context, raised),
                    }
                }
            }
        }
        Entry::Handle(handle) => handle.run(after).or_else(|raised| core.report_handle(&handle, raised)),
        Entry::Native { object, run } => {
            run(&object, core)?;
            after(&object).map_err(|Raised| Fatal)
        }
        Entry::Foreign(handle) => {
            run_reported(core, &handle)?;
            after(&handle).map_err(|Raised| Fatal)
        }
    }
}

/// Runs a foreign handle. Its `_run` reports errors itself; an error that it raises is printed.
fn run_reported(core: &Core, handle: &Ref) -> Result<(), Fatal> {
    run_foreign(handle).or_else(|Raised| core.unraisable(raise(take_unless_fatal()?)))
}

/// Runs an entry in debug mode, or with a patched `asyncio.Handle._run`, which has to be called for every callback.
#[cold]
fn run_instrumented(core: &Core, entry: Entry, batch: &mut Batch) -> Result<(), Fatal> {
    let entry = if core.instrumentation.patches_handle_run() {
        super::entries::from_handle(into_handle(core, entry).map_err(|Raised| Fatal)?)
    } else {
        entry
    };
    let debug = core.is_debug();
    let ran = match &entry {
        Entry::Handle(handle) if handle.is_cancelled() => return Ok(()),
        Entry::Handle(handle) if debug => {
            debug::callback(core, handle.object(), || run_by_patch(core, handle, true))?;
            handle.object()
        }
        Entry::Handle(handle) => return run_by_patch(core, handle, false),
        Entry::Foreign(handle) if debug => {
            debug::callback(core, handle, || run_reported(core, handle))?;
            handle
        }
        Entry::Native { object, run } if debug => {
            debug::native(core, object, || run(object, core))?;
            object
        }
        // In debug mode, this is a callback that C code has queued before the mode was switched on.
        _ => return run_plain(core, entry, batch),
    };
    let noted = probe::entry_ran(core, ran, batch).map_err(|Raised| Fatal);
    if let Entry::Handle(handle) = &entry {
        handle.finish_run();
    }
    noted
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
    let result = if debug { handle.run_debug() } else { handle.run(|_| Ok(())) };
    result.or_else(|raised| core.report_handle(handle, raised))
}
