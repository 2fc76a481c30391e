//! The descriptor of a Python file, read where the file keeps it: once the program has closed the file, the number may
//! belong to another file.

use std::ffi::c_int;
use std::os::fd::RawFd;

use pyo3::ffi;
use pyo3::prelude::*;

use super::fallible::Fallible;
use super::imports::imports;
use super::object::Ref;

/// How an `io.FileIO` and a `socket.socket` begin, in every CPython that we know.
#[repr(C)]
struct Head {
    object: ffi::PyObject,
    fd: c_int,
}

/// The file without buffers, or the socket, in which the descriptor of `owner` is kept: what [`descriptor`] may be asked
/// for. None where `owner` is nothing that we know, or does not look as we think.
pub(crate) fn keeper(owner: &Bound<'_, PyAny>, fd: RawFd) -> Option<Ref> {
    let mut keeper = owner.clone();
    if keeper.is_instance(&imports().io_base.bind(owner.py())).unwrap_or(false) {
        // A text file has a buffer, and that the file itself.
        for within in ["buffer", "raw"] {
            keeper = keeper.getattr(Fallible(within)).unwrap_or(keeper);
        }
    }
    let kind = keeper.get_type_ptr();
    let known = [&imports().file_io, &imports().socket].iter().any(|known| known.as_ptr() == kind.cast());
    // SAFETY: an object of a class of C, which is read only as far as the class says that it reaches.
    let proven = known
        && unsafe {
            (*kind).tp_basicsize as usize >= size_of::<Head>() && (*keeper.as_ptr().cast::<Head>()).fd == fd
        };
    proven.then(|| keeper.into())
}

/// The descriptor that a keeper has, -1 once it was closed or detached.
///
/// # Safety
/// `keeper` came from [`keeper`].
#[inline(always)]
pub(crate) unsafe fn descriptor(keeper: *mut ffi::PyObject) -> RawFd {
    // SAFETY: it was proven to begin so, and its class cannot change its layout.
    unsafe { (*keeper.cast::<Head>()).fd }
}
