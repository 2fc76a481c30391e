//! The descriptor of a Python socket or file, read where the object keeps it.
//!
//! Once a program has closed such an object, the number of its descriptor may belong to another file. The object itself
//! then says -1. To ask it by `fileno()` costs a call, so native code reads the field, where the layout has been checked.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::error::undisturbed;
use crate::capi::imports::imports;
use crate::capi::{Borrowed, Fallible, Raised, Ref, Slot};

/// How an `io.FileIO` and a `socket.socket` begin, in every known CPython.
#[repr(C)]
struct Head {
    object: ffi::PyObject,
    fd: c_int,
    /// Of a socket only.
    family: c_int,
}

/// The beginning of an object, if its class is one of these and its instances are large enough.
fn head_of<'a>(object: &'a Ref, classes: &[&Ref]) -> Option<&'a Head> {
    let known = classes.iter().any(|class| object.is_exactly(class));
    // SAFETY: an object of a class of C, which is read only as far as the class says that it reaches.
    unsafe {
        (known && (*object.kind()).tp_basicsize as usize >= size_of::<Head>())
            .then(|| &*object.as_ptr().cast::<Head>())
    }
}

/// True once a socket of this process was seen to begin so. Written and read with the GIL held.
static PROVEN: AtomicBool = AtomicBool::new(false);

/// The descriptor of a Python socket, -1 once it was closed or detached.
#[inline(always)]
pub(crate) fn of_socket(socket: &Ref) -> RawFd {
    if socket.is_exactly(&imports().socket) && PROVEN.load(Ordering::Relaxed) {
        // SAFETY: of the class on which the layout was proven.
        return unsafe { (*socket.as_ptr().cast::<Head>()).fd };
    }
    by_fileno(socket)
}

/// The same of a socket in a slot, or none if the slot is empty.
#[inline(always)]
pub(crate) fn in_slot(slot: &Slot) -> Option<RawFd> {
    // SAFETY: null, or an object that the slot owns. `by_fileno` owns it too before any Python code runs.
    unsafe { Borrowed::from_nullable(slot.as_ptr()) }.map(|socket| of_socket(&socket))
}

/// The same by `fileno()`.
#[cold]
fn by_fileno(socket: &Ref) -> RawFd {
    let socket = socket.clone_ref();
    undisturbed(|| {
        let fd = number(socket.call_method(&imports().fileno, &[])).unwrap_or(-1);
        if fd >= 0 && !PROVEN.load(Ordering::Relaxed) {
            let family = || number(socket.getattr(&imports().family));
            let proven = head_of(&socket, &[&imports().socket])
                .is_some_and(|head| head.fd == fd && family() == Some(head.family));
            PROVEN.store(proven, Ordering::Relaxed);
        }
        fd
    })
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

/// The file without buffers, or the socket, in which the descriptor of `owner` is kept: what [`of_keeper`] may be asked
/// for. None if `owner` is of an unknown class, or does not begin as a [`Head`].
pub(crate) fn keeper(owner: &Bound<'_, PyAny>, fd: RawFd) -> Option<Ref> {
    let mut keeper = owner.clone();
    if keeper.is_instance(&imports().io_base.bind(owner.py())).unwrap_or(false) {
        // A text file has a buffer, and that the file itself.
        for within in ["buffer", "raw"] {
            keeper = keeper.getattr(Fallible(within)).unwrap_or(keeper);
        }
    }
    let keeper = Ref::from(keeper);
    let proven = head_of(&keeper, &[&imports().file_io, &imports().socket]).is_some_and(|head| head.fd == fd);
    proven.then_some(keeper)
}

/// The descriptor that a keeper has, -1 once it was closed or detached.
///
/// # Safety
/// `keeper` came from [`keeper`].
#[inline(always)]
pub(crate) unsafe fn of_keeper(keeper: *mut ffi::PyObject) -> RawFd {
    // SAFETY: it was proven to begin so, and its class cannot change its layout.
    unsafe { (*keeper.cast::<Head>()).fd }
}
