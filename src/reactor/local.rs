//! Receives from Unix domain sockets.
//!
//! A message that carries file descriptors ends a read, even if more data follows it and even if nobody asked
//! for the descriptors (they are closed then). So, unlike for TCP, a short read does not mean that the socket
//! is drained. But the kernel sets a flag when it leaves descriptors out. The flag tells the two cases apart
//! without another system call.

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;

use super::sys;

/// Calls `recvmsg` once, without blocking. Returns the number of bytes, and whether more may be there although
/// the buffers were not filled.
///
/// # Errors
/// Those of `recvmsg(2)`; `WouldBlock` if nothing is there.
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
