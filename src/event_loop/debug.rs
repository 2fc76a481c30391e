//! What debug mode adds when something runs: the current handle, and a line in the log for what takes long.

use pyo3::ffi;

use super::core::Core;
use crate::capi::call::method;
use crate::capi::error::{raise, take_exception};
use crate::capi::imports::imports;
use crate::capi::{Fatal, Raised, Ref};

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
    log_duration(core, "callback_took", before, &[handle.as_ptr()])
}

/// The exception handler finds the handle here, with the stack that created it.
fn set_current(core: &Core, handle: &Ref) -> Result<(), Fatal> {
    let name = imports()._current_handle.as_ptr();
    // SAFETY: live objects; a failure is an error that is reported below.
    match unsafe { ffi::PyObject_SetAttr(core.object(), name, handle.as_ptr()) } {
        0 => Ok(()),
        _ => core.unraisable(Raised),
    }
}

/// Runs what a native object does by itself: it handles its descriptor's event, or makes a step of its own. It calls the
/// protocol without a handle that the log could name, so the log names the protocol, as it was before.
#[cold]
pub(super) fn native(
    core: &Core,
    object: &Ref,
    run: impl FnOnce() -> Result<(), Fatal>,
) -> Result<(), Fatal> {
    let protocol = method(object, imports().get_protocol.as_ptr(), &[]).unwrap_or_else(|raised| {
        // A listener, say.
        drop(raised.take());
        Ref::none()
    });
    let before = now(core)?;
    run()?;
    log_duration(core, "native_took", before, &[object.as_ptr(), protocol.as_ptr()])
}

fn now(core: &Core) -> Result<f64, Fatal> {
    core.now().map_err(|Raised| Fatal)
}

/// Has `function` of `wakeloop._support` log how long something took that began at the time `before`.
fn log_duration(core: &Core, function: &str, before: f64, what: &[*mut ffi::PyObject]) -> Result<(), Fatal> {
    let seconds = now(core)? - before;
    // SAFETY: making a float; null on lack of memory, which costs the log a line.
    let Some(seconds) = (unsafe { Ref::from_owned(ffi::PyFloat_FromDouble(seconds)) }) else { return Ok(()) };
    let arguments: Vec<_> =
        [core.object(), seconds.as_ptr()].into_iter().chain(what.iter().copied()).collect();
    core.support(function, &arguments)
}
