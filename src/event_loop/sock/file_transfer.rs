//! A file transfer into a socket: one `sendfile(2)` after another, whenever the socket has room.
//!
//! A [`SockCall`](super::call::SockCall) or a stream transport waits for the socket and drives the transfer. Neither needs
//! Python until the whole file is sent. What comes before (is it a file, how large?) and after (where does the file stand
//! now, what does an error mean?) is done by asyncio's code in Python.
//!
//! The system call may wait for a disk, so the GIL is given up around it, as `os.sendfile` does. Nothing of the loop is
//! borrowed meanwhile.

use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;

use pyo3::ffi;

use crate::capi::error::raise_io;
use crate::capi::fallible::tuple;
use crate::capi::inspect::integer;
use crate::capi::{Exception, Raised, Ref};

/// At most so many bytes are sent in one turn: to a reader that is as fast as the loop, the whole file would go out before
/// any other callback.
const AT_ONCE: i64 = 1 << 20;

/// A transfer, and how much of the file is sent.
#[derive(Debug)]
pub(crate) struct FileTransfer {
    file: RawFd,
    offset: Cell<i64>,
    /// How much may still be sent. Without a count there is no limit but the end of the file.
    left: Cell<i64>,
    sent: Cell<i64>,
}

/// What one turn of a transfer came to.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The socket is full. The poller reports when it has room again.
    Blocked,
    /// There may be room for more in the next turn.
    Again,
    /// The end, or an error of either descriptor.
    Ended(io::Result<()>),
}

impl FileTransfer {
    pub(crate) fn new(file: RawFd, offset: i64, count: Option<i64>) -> FileTransfer {
        let (offset, left, sent) = (Cell::new(offset), Cell::new(count.unwrap_or(i64::MAX)), Cell::new(0));
        FileTransfer { file, offset, left, sent }
    }

    /// Sends as much as the socket takes, or [`AT_ONCE`]. The end is reported in the turn after the last piece, so a peer
    /// on the same loop reads first. asyncio's transfer too notices the end only when the socket has room again.
    pub(crate) fn go_on(&self, socket: RawFd) -> Progress {
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

    /// What Python gets: (how much was sent, the error or `None`).
    pub(crate) fn result(&self, outcome: io::Result<()>) -> Result<Ref, Raised> {
        self.ended(outcome.map_or_else(|error| raise_io(&error).take(), |()| Ref::none()))
    }

    /// The same when the connection has gone away, with the reason if there was one.
    pub(crate) fn lost(&self, reason: Option<Ref>) -> Result<Ref, Raised> {
        self.ended(
            reason.unwrap_or_else(|| Exception::ConnectionError.raise("Connection is closed by peer").take()),
        )
    }

    fn ended(&self, error: Ref) -> Result<Ref, Raised> {
        tuple([integer(self.sent.get())?, error])
    }
}

/// One `sendfile`, without the GIL.
#[cfg(target_os = "linux")]
fn send(socket: RawFd, file: RawFd, mut offset: i64, count: i64) -> io::Result<i64> {
    // SAFETY: the GIL is held, and nothing of Python is touched between the two calls; descriptors that are closed
    // by then are an error of the call.
    let (sent, error) = unsafe {
        let state = ffi::PyEval_SaveThread();
        let sent = libc::sendfile(socket, file, &mut offset, count as usize);
        let error = io::Error::last_os_error();
        ffi::PyEval_RestoreThread(state);
        (sent, error)
    };
    if sent < 0 { Err(error) } else { Ok(sent as i64) }
}

/// Other systems have other calls of that name; there, `wakeloop._sendfile` leaves it to asyncio.
#[cfg(not(target_os = "linux"))]
fn send(_socket: RawFd, _file: RawFd, _offset: i64, _count: i64) -> io::Result<i64> {
    Err(io::ErrorKind::Unsupported.into())
}
