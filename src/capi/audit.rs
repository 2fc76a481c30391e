//! The audit events of Python's `socket` module, for what native code does without it.
//!
//! `PySys_Audit` returns at once if there is no hook, and builds its arguments only for one. A hook that raises denies
//! the operation.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use pyo3::ffi;

use super::call::{guard, guarded};
use super::inspect::{clear_error, status};
use super::object::Ref;
use super::raised::Raised;

unsafe extern "C-unwind" {
    fn PySys_Audit(event: *const c_char, format: *const c_char, ...) -> c_int;
}

/// Makes the argument of an event, for the format `O&`. Returns an owned reference, or null with an error.
type Maker = unsafe extern "C" fn(*mut c_void) -> *mut ffi::PyObject;

/// Is there a hook that would see an event?
#[inline(always)]
pub(crate) fn has_hook() -> bool {
    /// Notes that the argument is wanted, and refuses to make it. So no hook is called.
    unsafe extern "C" fn refuse(found: *mut c_void) -> *mut ffi::PyObject {
        // SAFETY: the flag of the call below, which is still running. This thread is attached.
        unsafe {
            *found.cast::<bool>() = true;
            ffi::PyErr_NoMemory()
        }
    }
    let (mut found, maker) = (false, refuse as Maker);
    // SAFETY: as the format says, a function with its argument.
    let outcome = unsafe {
        PySys_Audit(c"socket.__new__".as_ptr(), c"O&".as_ptr(), maker, (&raw mut found).cast::<c_void>())
    };
    if outcome < 0 {
        clear_error();
    }
    found
}

/// `sys.audit("socket.getaddrinfo", host, port, family, type, protocol)`.
pub(crate) fn looks_up([host, port]: [&Ref; 2], [family, kind, protocol]: [c_int; 3]) -> Result<(), Raised> {
    let event = c"socket.getaddrinfo".as_ptr();
    // SAFETY: as the format says, two live objects and three numbers.
    allowed(|| unsafe {
        PySys_Audit(event, c"OOiii".as_ptr(), host.as_ptr(), port.as_ptr(), family, kind, protocol)
    })
}

/// `sys.audit("socket.sendmsg", socket, None)`, with a socket that is made only if there is a hook to see it.
pub(crate) fn sends_pieces<F: FnMut() -> Result<Ref, Raised>>(mut socket: F) -> Result<(), Raised> {
    unsafe extern "C" fn make<F: FnMut() -> Result<Ref, Raised>>(socket: *mut c_void) -> *mut ffi::PyObject {
        // SAFETY: the closure of the call below, which is still running.
        guard(|| unsafe { (*socket.cast::<F>())() }.map_or(null_mut(), Ref::into_ptr))
    }
    let (event, maker) = (c"socket.sendmsg".as_ptr(), make::<F> as Maker);
    // SAFETY: as the format says, a function with its argument, and a live object.
    allowed(|| unsafe {
        PySys_Audit(event, c"O&O".as_ptr(), maker, (&raw mut socket).cast::<c_void>(), ffi::Py_None())
    })
}

fn allowed(audit: impl FnOnce() -> c_int) -> Result<(), Raised> {
    status(guarded(audit))
}
