//! What asyncio's debug mode adds when something runs: which handle it is, and a line in the log for what takes long.

use pyo3::ffi;

use super::core::Core;
use super::handle::{Handle, is_handle, spent};
use super::ready::Entry;
use super::turn::run_entry;
use crate::capi::call::method;
use crate::capi::error::{raise, take_exception};
use crate::capi::imports::imports;
use crate::capi::{Fatal, Raised, Ref};

/// Runs an entry of the ready queue.
#[cold]
pub(super) fn run(core: &Core, entry: Entry) -> Result<(), Fatal> {
    let handle = match entry {
        Entry::Handle(handle) | Entry::Foreign(handle) => handle,
        Entry::Native { object, run } => return native(core, &object, || run(&object, core)),
        // Queued by C code before debug mode was switched on.
        other => return run_entry(core, other),
    };
    let ours = is_handle(handle.as_ptr());
    // SAFETY: just tested, where it matters.
    if ours && unsafe { Handle::of(handle.as_ptr()) }.is_cancelled() {
        return Ok(());
    }
    let name = imports()._current_handle.as_ptr();
    let set = |value: *mut ffi::PyObject| {
        // SAFETY: live objects; a failure is an error that is reported below.
        if unsafe { ffi::PyObject_SetAttr(core.object(), name, value) } < 0 { Err(Raised) } else { Ok(()) }
    };
    set(handle.as_ptr()).or_else(|raised| core.unraisable(raised))?;
    let before = now(core)?;
    let outcome = if ours {
        // SAFETY: just tested; the handle is held.
        let inside = unsafe { Handle::of(handle.as_ptr()) };
        match inside.run_by_tool() {
            Ok(true) => Ok(()),
            // The copy keeps the callback, so that the log can name it.
            Ok(false) => match inside.run_debug() {
                Ok(()) => Ok(()),
                Err(raised) => core.report_handle(&handle, raised),
            },
            Err(Raised) => Err(Fatal),
        }
    } else {
        run_entry(core, Entry::Foreign(handle.clone_ref()))
    };
    let fatal = outcome.is_err().then(take_exception);
    set(Ref::none().as_ptr()).or_else(|raised| core.unraisable(raised))?;
    if let Some(exception) = fatal {
        raise(exception);
        return Err(Fatal);
    }
    took(core, "callback_took", before, &[handle.as_ptr()])?;
    if ours {
        spent(&handle);
    }
    Ok(())
}

/// Runs what a native object does by itself: what its descriptor is ready for, or a step of its own. It calls the
/// protocol without a handle that the log could name, so that names the protocol, as it was before.
#[cold]
pub(super) fn native(
    core: &Core,
    object: &Ref,
    work: impl FnOnce() -> Result<(), Fatal>,
) -> Result<(), Fatal> {
    let protocol = method(object, imports().get_protocol.as_ptr(), &[]).unwrap_or_else(|raised| {
        // A listener, say.
        drop(raised.take());
        Ref::none()
    });
    let before = now(core)?;
    work()?;
    took(core, "native_took", before, &[object.as_ptr(), protocol.as_ptr()])
}

fn now(core: &Core) -> Result<f64, Fatal> {
    core.now().map_err(|Raised| Fatal)
}

/// Tells how long something took that began at the time `before`.
fn took(core: &Core, tell: &str, before: f64, what: &[*mut ffi::PyObject]) -> Result<(), Fatal> {
    let seconds = now(core)? - before;
    // SAFETY: making a float; null on lack of memory, which costs the log a line.
    let Some(seconds) = (unsafe { Ref::from_owned(ffi::PyFloat_FromDouble(seconds)) }) else { return Ok(()) };
    let arguments: Vec<_> =
        [core.object(), seconds.as_ptr()].into_iter().chain(what.iter().copied()).collect();
    core.support(tell, &arguments)
}
