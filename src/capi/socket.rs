//! Python sockets for descriptors that native objects own, and the other way round.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::call;
use super::error::{Raised, fetch, undisturbed};
use super::fallible::Fallible;
use super::imports::{imports, support};
use super::object::Ref;

/// A socket with the descriptor of an object of ours, which takes it away again before it closes that. None if it is no
/// longer `wanted` once it is made: Python has run, so another thread may have asked too, or closed the object. One
/// descriptor has one owner.
pub(crate) fn adopt(py: Python<'_>, fd: RawFd, wanted: impl FnOnce() -> bool) -> PyResult<Option<Ref>> {
    let socket = support(py, "adopt_socket")?.call1((Fallible(fd),))?;
    if wanted() {
        return Ok(Some(Ref::from(socket)));
    }
    socket.call_method0(Fallible("detach"))?;
    Ok(None)
}

/// How a `socket.socket` begins, in every CPython that we know.
#[repr(C)]
struct Head {
    object: ffi::PyObject,
    fd: c_int,
    family: c_int,
}

/// That this is so was seen on a socket of this process. Written and read with the GIL held.
static PROVEN: AtomicBool = AtomicBool::new(false);

/// The descriptor of a Python socket, -1 once it was closed or detached: its old number may be another's by then.
#[inline(always)]
pub(crate) fn descriptor(socket: *mut ffi::PyObject) -> RawFd {
    // SAFETY: a live object, and one of the class on which the layout was proven.
    unsafe {
        if (*socket).ob_type.cast() == imports().socket.as_ptr() && PROVEN.load(Ordering::Relaxed) {
            return (*socket.cast::<Head>()).fd;
        }
    }
    asked(socket)
}

/// The same by `fileno()`.
#[cold]
fn asked(socket: *mut ffi::PyObject) -> RawFd {
    undisturbed(|| {
        // SAFETY: a live object.
        let socket = unsafe { Ref::from_borrowed(socket) };
        let fd = number(call::method(&socket, imports().fileno.as_ptr(), &[])).unwrap_or(-1);
        if fd >= 0 && !PROVEN.load(Ordering::Relaxed) {
            PROVEN.store(looks_like_head(&socket, fd), Ordering::Relaxed);
        }
        fd
    })
}

/// Does a socket with this descriptor begin as a [`Head`]?
fn looks_like_head(socket: &Ref, fd: RawFd) -> bool {
    // SAFETY: a live object; it is read only as far as its type says that it reaches.
    unsafe {
        let kind = (*socket.as_ptr()).ob_type;
        if kind.cast() != imports().socket.as_ptr() || ((*kind).tp_basicsize as usize) < size_of::<Head>() {
            return false;
        }
        let head = &*socket.as_ptr().cast::<Head>();
        head.fd == fd
            && number(call::getattr(socket.as_ptr(), imports().family.as_ptr())) == Some(head.family)
    }
}

/// A small integer of Python's; what is none, or an error, is nothing.
fn number(object: Result<Ref, Raised>) -> Option<c_int> {
    // SAFETY: every caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    object.map_err(|Raised| fetch(py)).and_then(|object| object.bind(py).extract()).ok()
}
