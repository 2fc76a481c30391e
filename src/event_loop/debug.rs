//! What debug mode adds when something runs: the current handle, and a line in the log for what takes long.

use super::core::Core;
use crate::capi::error::{raise, take_exception};
use crate::capi::imports::imports;
use crate::capi::inspect::float;
use crate::capi::{Borrowed, Fatal, Raised, Ref};

/// Runs the callback of `handle` by `run`.
#[cold]
pub(super) fn callback(
    core: &Core,
    handle: &Ref,
    run: impl FnOnce() -> Result<(), Fatal>,
) -> Result<(), Fatal> {
    set_current(core, handle)?;
    let before = now(core)?;
    let fatal = run().is_err().then(take_exception);
    set_current(core, &Ref::none())?;
    if let Some(exception) = fatal {
        raise(exception);
        return Err(Fatal);
    }
    log_duration(core, "callback_took", before, &[handle.borrow()])
}

/// The exception handler finds the handle here, with the stack that created it.
fn set_current(core: &Core, handle: &Ref) -> Result<(), Fatal> {
    let set = core.borrow().setattr(&imports()._current_handle, handle);
    set.or_else(|raised| core.unraisable(raised))
}

/// Runs what a native object does by itself: it handles its descriptor's event, or makes a step of its own. It calls the
/// protocol without a handle that the log could name, so the log names the protocol, as it was before.
#[cold]
pub(super) fn native(
    core: &Core,
    object: &Ref,
    run: impl FnOnce() -> Result<(), Fatal>,
) -> Result<(), Fatal> {
    let protocol = object.call_method(&imports().get_protocol, &[]).unwrap_or_else(|raised| {
        // A listener, say.
        drop(raised.take());
        Ref::none()
    });
    let before = now(core)?;
    run()?;
    log_duration(core, "native_took", before, &[object.borrow(), protocol.borrow()])
}

fn now(core: &Core) -> Result<f64, Fatal> {
    core.now().map_err(|Raised| Fatal)
}

/// Has `function` of `wakeloop._support` log how long something took that began at the time `before`.
fn log_duration(core: &Core, function: &str, before: f64, what: &[Borrowed<'_>]) -> Result<(), Fatal> {
    let seconds = now(core)? - before;
    // A lack of memory costs the log a line.
    let Ok(seconds) = float(seconds).map_err(|raised| drop(raised.take())) else { return Ok(()) };
    let arguments: Vec<_> =
        [core.borrow(), seconds.borrow()].into_iter().chain(what.iter().copied()).collect();
    core.support(function, &arguments)
}
