//! Python sockets for descriptors that native objects own, and the other way round.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::error::{Raised, undisturbed};
use super::fallible::Fallible;
use super::imports::{imports, support};
use super::object::Ref;

/// A Python socket with the descriptor of a native object, which detaches the socket before it closes the descriptor.
/// `None` if it is no longer `wanted` once it is made: Python has run, so another thread may have asked for one too, or
/// closed the object. One descriptor has one owner.
pub(crate) fn adopt(py: Python<'_>, fd: RawFd, wanted: impl FnOnce() -> bool) -> PyResult<Option<Ref>> {
    let socket = support(py, "adopt_socket")?.call1((Fallible(fd),))?;
    if wanted() {
        return Ok(Some(Ref::from(socket)));
    }
    socket.call_method0(Fallible("detach"))?;
    Ok(None)
}

/// How a `socket.socket` begins, in every known CPython.
#[repr(C)]
struct Head {
    object: ffi::PyObject,
    fd: c_int,
    family: c_int,
}

/// True once a socket of this process was seen to begin so. Written and read with the GIL held.
static PROVEN: AtomicBool = AtomicBool::new(false);

/// The descriptor of a Python socket, -1 once it was closed or detached: the number may belong to another file by then.
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
    // SAFETY: a live object, which the caller borrows for the time of the call.
    let socket = unsafe { Ref::from_borrowed(socket) };
    undisturbed(|| {
        let fd = number(socket.call_method(&imports().fileno, &[])).unwrap_or(-1);
        if fd >= 0 && !PROVEN.load(Ordering::Relaxed) {
            PROVEN.store(looks_like_head(&socket, fd), Ordering::Relaxed);
        }
        fd
    })
}

/// Does a socket with this descriptor begin as a [`Head`]?
fn looks_like_head(socket: &Ref, fd: RawFd) -> bool {
    if !socket.is_exactly(&imports().socket) {
        return false;
    }
    // SAFETY: a live object, which is read only as far as its type says that it reaches.
    let family = unsafe {
        if ((*socket.kind()).tp_basicsize as usize) < size_of::<Head>() {
            return false;
        }
        let head = &*socket.as_ptr().cast::<Head>();
        (head.fd == fd).then_some(head.family)
    };
    family.is_some() && number(socket.getattr(&imports().family)) == family
}

/// A small Python int; nothing for an error, which is cleared, and for any other object.
fn number(object: Result<Ref, Raised>) -> Option<c_int> {
    match object.and_then(|object| object.to_index()) {
        Ok(number) => number.try_into().ok(),
        Err(raised) => {
            drop(raised.take());
            None
        }
    }
}
