//! Debug mode: sets the current handle, and logs slow callbacks.

use super::core::Core;
use crate::capi::error::{Outcome, unless_raised};
use crate::capi::imports::imports;
use crate::capi::inspect::float;
use crate::capi::{Borrowed, Fatal, Raised, Ref};

/// Calls `run`, which runs the callback of `handle`.
#[cold]
pub(super) fn callback(
    core: &Core,
    handle: &Ref,
    run: impl FnOnce() -> Result<(), Fatal>,
) -> Result<(), Fatal> {
    set_current(core, handle)?;
    let before = now(core)?;
    let mut outcome = Outcome::default();
    outcome.note(run());
    set_current(core, &Ref::none())?;
    outcome.finish()?;
    log_duration(core, "callback_took", before, &[handle.borrow()])
}

/// Sets `loop._current_handle`, from which the exception handler takes the traceback of the handle's creation.
fn set_current(core: &Core, handle: &Ref) -> Result<(), Fatal> {
    let set = core.borrow().setattr(&imports()._current_handle, handle);
    set.or_else(|raised| core.unraisable(raised))
}

/// Calls `run`, in which a native object handles an event or runs an entry of the ready queue. There is no handle that
/// the log could name, so it names the protocol, which is read first because `run` may change it.
#[cold]
pub(super) fn native(
    core: &Core,
    object: &Ref,
    run: impl FnOnce() -> Result<(), Fatal>,
) -> Result<(), Fatal> {
    // Some objects, such as listeners, have no protocol.
    let protocol = unless_raised(object.call_method(&imports().get_protocol, &[])).unwrap_or_else(Ref::none);
    let before = now(core)?;
    run()?;
    log_duration(core, "native_took", before, &[object.borrow(), protocol.borrow()])
}

fn now(core: &Core) -> Result<f64, Fatal> {
    core.now().map_err(|Raised| Fatal)
}

/// Calls `function` of `wakeloop._support` with the time since `before`. It logs a line if that was long. Its error
/// leaves run_forever, as in asyncio, for example that of a limit which is no number.
fn log_duration(core: &Core, function: &str, before: f64, what: &[Borrowed<'_>]) -> Result<(), Fatal> {
    let seconds = now(core)? - before;
    // If memory has run out, nothing is logged.
    let Some(seconds) = unless_raised(float(seconds)) else { return Ok(()) };
    let arguments: Vec<_> =
        [core.borrow(), seconds.borrow()].into_iter().chain(what.iter().copied()).collect();
    core.support_or_leave(function, &arguments)
}
