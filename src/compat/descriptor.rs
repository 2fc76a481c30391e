//! Reads the file descriptor of a Python socket or file from the object's memory.
//!
//! After a program has closed such an object, its old descriptor number may belong to another file, and the object
//! itself has -1. A call of `fileno()` is slow, so native code reads the field, if the layout was checked.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::error::{undisturbed, unless_raised};
use crate::capi::imports::imports;
use crate::capi::shared::number as number_at;
use crate::capi::{Borrowed, Fallible, Raised, Ref, Slot};

/// The first fields of an `io.FileIO` and of a `socket.socket`, in every known CPython.
#[repr(C)]
struct Head {
    object: ffi::PyObject,
    fd: c_int,
    /// Only sockets have this field.
    family: c_int,
}

/// The first fields of an object, if its class is one of `classes` and its instances are large enough: the descriptor,
/// and what is the family of a socket.
fn head_of(object: &Ref, classes: &[&Ref]) -> Option<(c_int, c_int)> {
    let known = classes.iter().any(|class| object.is_exactly(class));
    // SAFETY: an instance of a C class. `tp_basicsize` shows that it is at least as large as a `Head`.
    unsafe {
        (known && (*object.kind()).tp_basicsize as usize >= size_of::<Head>()).then(|| {
            let head = object.as_ptr().cast::<Head>().cast_const();
            (number_at(&raw const (*head).fd), number_at(&raw const (*head).family))
        })
    }
}

/// The layout was checked on a socket of this process. Relaxed everywhere: every thread that checks finds the same.
static LAYOUT_CHECKED: AtomicBool = AtomicBool::new(false);

/// The descriptor of a Python socket; -1 if the socket is closed or detached.
#[inline(always)]
pub(crate) fn of_socket(socket: &Ref) -> RawFd {
    if socket.is_exactly(&imports().socket) && LAYOUT_CHECKED.load(Ordering::Relaxed) {
        // SAFETY: the layout was checked on an instance of this class.
        return unsafe { number_at(&raw const (*socket.as_ptr().cast::<Head>()).fd) };
    }
    by_fileno(socket)
}

/// The descriptor of the socket in a slot; `None` if the slot is empty.
#[inline(always)]
pub(crate) fn in_slot(slot: &Slot) -> Option<RawFd> {
    // SAFETY: null, or an object that the slot owns. `by_fileno` takes a reference of its own before it runs Python
    // code.
    unsafe { Borrowed::from_nullable(slot.as_ptr()) }.map(|socket| of_socket(&socket))
}

/// The descriptor that `fileno()` returns. Checks the layout if that has not been done.
#[cold]
fn by_fileno(socket: &Ref) -> RawFd {
    let socket = socket.clone_ref();
    undisturbed(|| {
        let fd = number(socket.call_method(&imports().fileno, &[])).unwrap_or(-1);
        if fd >= 0 && !LAYOUT_CHECKED.load(Ordering::Relaxed) {
            let family = || number(socket.getattr(&imports().family));
            let matches = head_of(&socket, &[&imports().socket])
                .is_some_and(|head| head.0 == fd && family() == Some(head.1));
            LAYOUT_CHECKED.store(matches, Ordering::Relaxed);
        }
        fd
    })
}

/// The value of a Python int. `None` for an error, which is cleared, for another object and for a value out of range.
fn number(object: Result<Ref, Raised>) -> Option<c_int> {
    unless_raised(object.and_then(|object| object.to_index()))?.try_into().ok()
}

/// The raw file or the socket that holds the descriptor of `owner`, for [`of_holder`]. `None` if its class is not a
/// known one, or if its first fields do not look like a [`Head`] with this descriptor.
pub(crate) fn holder(owner: &Bound<'_, PyAny>, fd: RawFd) -> Option<Ref> {
    let mut holder = owner.clone();
    if holder.is_instance(&imports().io_base.bind(owner.py())).unwrap_or(false) {
        // A text file wraps a buffered file, which wraps the raw file.
        for within in ["buffer", "raw"] {
            holder = holder.getattr(Fallible(within)).unwrap_or(holder);
        }
    }
    let holder = Ref::from(holder);
    let matches = head_of(&holder, &[&imports().file_io, &imports().socket]).is_some_and(|head| head.0 == fd);
    matches.then_some(holder)
}

/// The descriptor of a holder; -1 if it is closed or detached.
///
/// # Safety
/// `holder` came from [`holder`].
#[inline(always)]
pub(crate) unsafe fn of_holder(holder: *mut ffi::PyObject) -> RawFd {
    // SAFETY: `holder` has checked that it begins with a `Head`. An object's layout never changes.
    unsafe { number_at(&raw const (*holder.cast::<Head>()).fd) }
}
