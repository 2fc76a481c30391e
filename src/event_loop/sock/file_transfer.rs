//! Sends a file to a socket: one `sendfile(2)` after another, whenever the socket has room.
//!
//! A [`SockCall`](super::call::SockCall) or a stream transport waits for the socket, and drives the transfer. No Python
//! code runs until the whole file is sent. asyncio's code in Python checks the file before that, and sets its position
//! and handles errors afterwards.
//!
//! The system call may wait for a disk, so the GIL is released during the call, as in `os.sendfile`. No state of the
//! loop may be borrowed then.

use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;

use crate::capi::error::raise_os_error;
use crate::capi::fallible::tuple;
use crate::capi::inspect::integer;
use crate::capi::{Exception, Raised, Ref};

/// The most bytes that are sent in one turn. Without this limit, if the peer reads as fast as the loop sends, the whole
/// file would be sent before any other callback runs.
const AT_ONCE: i64 = 1 << 20;

/// A transfer and its progress.
#[derive(Debug)]
pub(crate) struct FileTransfer {
    file: RawFd,
    offset: Cell<i64>,
    /// How many bytes may still be sent. Without a count, only the end of the file is a limit.
    left: Cell<i64>,
    sent: Cell<i64>,
}

/// The outcome of a transfer's work in one turn.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The socket is full. The poller reports when it has room again.
    Blocked,
    /// There may be room for more in the next turn.
    Again,
    /// All is sent, or one of the descriptors had an error.
    Ended(io::Result<()>),
}

impl FileTransfer {
    pub(crate) fn new(file: RawFd, offset: i64, count: Option<i64>) -> FileTransfer {
        let (offset, left, sent) = (Cell::new(offset), Cell::new(count.unwrap_or(i64::MAX)), Cell::new(0));
        FileTransfer { file, offset, left, sent }
    }

    /// Sends as much as the socket accepts, but at most [`AT_ONCE`]. The end is reported one turn after the last bytes,
    /// so that a peer on the same loop reads first. asyncio's transfer also notices the end only at the next writable
    /// event.
    pub(crate) fn send_more(&self, socket: RawFd) -> Progress {
        let mut room = AT_ONCE;
        let before = self.sent.get();
        while self.left.get() > 0 {
            if room == 0 {
                return Progress::Again;
            }
            match send(socket, self.file, self.offset.get(), room.min(self.left.get())) {
                Ok(0) => self.left.set(0),
                Ok(count) => {
                    self.offset.set(self.offset.get() + count);
                    self.left.set(self.left.get() - count);
                    self.sent.set(self.sent.get() + count);
                    room -= count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Blocked,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Progress::Again,
                Err(error) => return Progress::Ended(Err(error)),
            }
        }
        if self.sent.get() > before { Progress::Again } else { Progress::Ended(Ok(())) }
    }

    /// The result for Python: (number of bytes sent, exception or `None`).
    pub(crate) fn result(&self, outcome: io::Result<()>) -> Result<Ref, Raised> {
        self.ended(outcome.map_or_else(|error| raise_os_error(&error).take(), |()| Ref::none()))
    }

    /// The result after the connection was lost, with the exception if there was one.
    pub(crate) fn lost(&self, reason: Option<Ref>) -> Result<Ref, Raised> {
        self.ended(
            reason.unwrap_or_else(|| Exception::ConnectionError.raise("Connection is closed by peer").take()),
        )
    }

    fn ended(&self, error: Ref) -> Result<Ref, Raised> {
        tuple([integer(self.sent.get())?, error])
    }
}

/// Calls `sendfile` without the GIL.
#[cfg(target_os = "linux")]
fn send(socket: RawFd, file: RawFd, mut offset: i64, count: i64) -> io::Result<i64> {
    use pyo3::ffi;

    // SAFETY: this thread is attached, and no Python object is used between the two calls. If a descriptor was closed,
    // `sendfile` fails.
    let (sent, error) = unsafe {
        let state = ffi::PyEval_SaveThread();
        let sent = libc::sendfile(socket, file, &mut offset, count as usize);
        let error = io::Error::last_os_error();
        ffi::PyEval_RestoreThread(state);
        (sent, error)
    };
    if sent < 0 { Err(error) } else { Ok(sent as i64) }
}

/// Other systems have a `sendfile` with another signature. There, `wakeloop._net.sendfile` uses asyncio's code.
#[cfg(not(target_os = "linux"))]
fn send(_socket: RawFd, _file: RawFd, _offset: i64, _count: i64) -> io::Result<i64> {
    Err(io::ErrorKind::Unsupported.into())
}
