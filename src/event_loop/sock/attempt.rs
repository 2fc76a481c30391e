//! Single attempts at a socket's system call.
//!
//! No attempt waits. If a call would block, the attempt returns the direction for which `call.rs` has to wait before it
//! tries again.

use std::io;
use std::os::fd::RawFd;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::buffer::{RawBytes, bytes_from};
use crate::capi::error::{raise_errno, raise_os_error};
use crate::capi::imports::imports;
use crate::capi::inspect::{clear_error, integer, is_error_set};
use crate::capi::sockaddr::is_plain_socket;
pub(super) use crate::capi::socket::SEND_FLAGS;
use crate::capi::{Exception, Fallible, Raised, Ref};
use crate::compat::descriptor;
use crate::kernel::core::Core;
use crate::kernel::core::watched_fd::Direction;

/// Up to this size, data is received into the loop's buffer and then copied. For larger sizes it is received directly
/// into the bytes object that the caller gets.
const COPIED: usize = 64 * 1024;

/// The outcome of an attempt.
pub(super) enum Attempt {
    Finished(Ref),
    Blocked(Direction),
    /// The caller has to try once more.
    Again,
}

pub(super) fn sized(
    count: isize,
    direction: Direction,
    result: impl FnOnce(usize) -> Result<Ref, Raised>,
) -> Result<Attempt, Raised> {
    if count < 0 { would_block(direction) } else { result(count as usize).map(Attempt::Finished) }
}

/// The outcome of a system call that has returned -1: wait, try again, or raise the error.
pub(super) fn would_block(direction: Direction) -> Result<Attempt, Raised> {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(Attempt::Blocked(direction)),
        // Waiting would be wrong: data that is there already causes no edge.
        io::ErrorKind::Interrupted => Ok(Attempt::Again),
        _ => Err(raise_os_error(&error)),
    }
}

pub(super) fn receive(core: &Core, fd: RawFd, size: usize) -> Result<Attempt, Raised> {
    if size == 0 {
        // As in Python, there is no system call.
        return bytes_from(&[]).map(Attempt::Finished);
    }
    let call = |place: *mut u8| {
        // SAFETY: `receive_by` passes a pointer to `size` writable bytes.
        let count = unsafe { libc::recv(fd, place.cast(), size, libc::MSG_DONTWAIT) };
        core.note_received(fd, count);
        (count, ())
    };
    receive_by(core, size, call, |bytes, ()| Ok(bytes))
}

/// Receives at most `size` bytes. `call` makes the system call, which writes to the pointer that `call` gets. `result`
/// gets the bytes object and the other value that `call` has returned.
pub(super) fn receive_by<S>(
    core: &Core,
    size: usize,
    call: impl FnOnce(*mut u8) -> (isize, S),
    result: impl FnOnce(Ref, S) -> Result<Ref, Raised>,
) -> Result<Attempt, Raised> {
    if size <= COPIED {
        let mut buffer = core.scratch.receive_buffer();
        let (count, more) = call(buffer[..size].as_mut_ptr());
        return sized(count, Direction::Read, |count| result(bytes_from(&buffer[..count])?, more));
    }
    let mut bytes = RawBytes::with_capacity(size)?;
    let (count, more) = call(bytes.as_mut_ptr());
    // SAFETY: the call has written `count` bytes.
    sized(count, Direction::Read, |count| result(unsafe { bytes.finish(count) }?, more))
}

/// Is the descriptor ready now?
fn is_ready(fd: RawFd, events: i16) -> bool {
    let mut asked = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one valid pollfd. The timeout is zero.
    unsafe { libc::poll(&mut asked, 1, 0) != 0 }
}

/// An integer option of a socket, at the level `SOL_SOCKET`.
pub(crate) fn socket_option(fd: RawFd, option: i32) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is valid for a write of `size` bytes.
    let done = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &mut size) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Calls `socket.accept()`, which supports every address family. The socket is non-blocking, so a `BlockingIOError`
/// means that the caller has to wait.
pub(super) fn accept(socket: &Ref, fd: RawFd) -> Result<Attempt, Raised> {
    // On a socket that does not listen, `accept` has to be called at once, because it raises: a wait would never end.
    if !is_ready(fd, libc::POLLIN) && !matches!(socket_option(fd, libc::SO_ACCEPTCONN), Ok(0)) {
        return Ok(Attempt::Blocked(Direction::Read));
    }
    let py = socket.py();
    let outcome = socket.bind(py).call_method0(Fallible("accept")).and_then(|pair| {
        pair.get_item(0)?.call_method1(Fallible("setblocking"), (false,))?;
        Ok(pair)
    });
    match outcome {
        Ok(pair) => Ok(Attempt::Finished(pair.into())),
        Err(error) => {
            blocked(error.into())?;
            Ok(Attempt::Blocked(Direction::Read))
        }
    }
}

/// A non-blocking Python call has failed. Clears the error if it only means that the caller has to wait.
pub(super) fn blocked(raised: Raised) -> Result<(), Raised> {
    if Exception::BlockingIOError.is_set() || Exception::InterruptedError.is_set() {
        clear_error();
        return Ok(());
    }
    Err(raised)
}

/// Is the connect that was started done? The result is `SO_ERROR` as an int, with 0 for success.
pub(super) fn connected(fd: RawFd) -> Result<Attempt, Raised> {
    if !is_ready(fd, libc::POLLOUT) {
        return Ok(Attempt::Blocked(Direction::Write));
    }
    let error = socket_option(fd, libc::SO_ERROR).map_err(|error| raise_os_error(&error))?;
    integer(error).map(Attempt::Finished)
}

pub(super) fn file_descriptor(socket: &Ref) -> Result<RawFd, Raised> {
    if is_plain_socket(socket.as_ptr()) {
        let fd = descriptor::of_socket(socket);
        if fd >= 0 {
            return Ok(fd);
        }
    }
    let number = socket.call_method(&imports().fileno, &[])?;
    // SAFETY: a live object. -1 means an error if one is set, or else a closed socket.
    match unsafe { ffi::PyLong_AsLong(number.as_ptr()) } {
        fd if fd >= 0 => Ok(fd as RawFd),
        _ if is_error_set() => Err(Raised),
        _ => Err(raise_errno(libc::EBADF)),
    }
}
