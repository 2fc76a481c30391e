//! Receiving from Unix domain sockets.
//!
//! A message that brings descriptors ends a read, whatever is behind it, also if the descriptors are not asked for: they
//! are closed then. So a short read of such a socket does not say that it is drained, as that of a TCP socket does. But the
//! system notes where it left descriptors out; that is what tells the two apart, at no further system call.

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;

use super::sys;

/// One `recvmsg`, which does not wait. How many bytes came, and whether more may be there though they did not fill the
/// buffers.
///
/// # Errors
/// What `recvmsg(2)` says; `WouldBlock` if nothing is there.
pub fn receive_local(fd: RawFd, buffers: &mut [IoSliceMut<'_>]) -> io::Result<(usize, bool)> {
    // SAFETY: all zeroes is an empty header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // An `IoSliceMut` is an `iovec`, as its documentation promises.
    header.msg_iov = buffers.as_mut_ptr().cast();
    header.msg_iovlen = buffers.len() as _;
    // SAFETY: the buffers are valid for writing and their number is right; a stale descriptor number is an error, not a
    // hazard.
    let got = unsafe { libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((got as usize, got > 0 && sys::may_be_cut(header.msg_flags)))
}
