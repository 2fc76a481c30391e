//! Sockets by their descriptor: a Python socket for a descriptor that a native object owns, and system calls.

use std::ffi::c_int;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use pyo3::prelude::*;
use socket2::{SockAddr, SockAddrStorage, SockRef, Socket};

use super::fallible::Fallible;
use super::imports::support;
use super::object::Ref;

/// How data is sent: without waiting, and without a signal if the peer is gone.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) const SEND_FLAGS: c_int = libc::MSG_DONTWAIT;

/// Makes a Python socket with the descriptor of a native object. The native object must detach the socket before it
/// closes the descriptor. Returns `None` if the socket is no longer `wanted` once it is made: Python code has run, so
/// another thread may have made one too, or closed the object.
pub(crate) fn adopt(py: Python<'_>, fd: RawFd, wanted: impl FnOnce() -> bool) -> PyResult<Option<Ref>> {
    let socket = support(py, "adopt_socket")?.call1((Fallible(fd),))?;
    if wanted() {
        return Ok(Some(Ref::from(socket)));
    }
    socket.call_method0(Fallible("detach"))?;
    Ok(None)
}

/// Makes one system call on a socket that the caller does not own.
pub(crate) fn with_socket<T>(fd: RawFd, call: impl FnOnce(&Socket) -> io::Result<T>) -> io::Result<T> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is used for the time of the call only. A descriptor that is closed makes the call fail.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    call(&SockRef::from(&fd))
}

/// One `recvfrom` without waiting: what it returns, and who sent the data.
///
/// # Safety
/// `place` has room for `size` bytes.
#[inline(always)]
pub(crate) unsafe fn receive_from(fd: RawFd, place: *mut u8, size: usize) -> (isize, SockAddr) {
    let mut storage = SockAddrStorage::zeroed();
    let mut length = storage.size_of();
    // SAFETY: the caller's contract; the system writes an address to the storage, and its length beside it.
    unsafe {
        let sender = storage.view_as::<libc::sockaddr>();
        let count = libc::recvfrom(fd, place.cast(), size, libc::MSG_DONTWAIT, sender, &mut length);
        (count, SockAddr::new(storage, length))
    }
}
