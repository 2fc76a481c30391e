//! A file on its way into a socket: `sendfile(2)`, piece after piece, whenever the socket has room.
//!
//! Whoever waits for the socket drives it: a [`SockCall`](super::sock::SockCall), or a stream transport. Neither
//! needs Python until the file is out. What comes before (is it a file, how large?) and after (where does the
//! file stand now, what does an error mean?) is asyncio's, in `wakeloop._sendfile`.
//!
//! The system call may have to wait for a disk, so the GIL is given up around it, as `os.sendfile` does. Nothing
//! of the loop is borrowed meanwhile.

use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;

use pyo3::ffi;

use crate::capi::error::{raise_io, raise_message};
use crate::capi::fallible::tuple;
use crate::capi::inspect::integer;
use crate::capi::{Raised, Ref};

/// So much goes out at most before others get their turn: a reader that is as fast as we are would keep us here
/// until the end of the file.
const AT_ONCE: i64 = 1 << 20;

/// How far it is.
#[derive(Debug)]
pub(crate) struct FileTransfer {
    file: RawFd,
    offset: Cell<i64>,
    /// How much may still be sent; without a count, for ever: the end of the file is the end.
    left: Cell<i64>,
    sent: Cell<i64>,
}

/// What a go came to.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The socket is full; an edge will tell when it is not.
    Blocked,
    /// There may be room for more, next turn.
    Again,
    /// The end, or an error of either descriptor.
    Ended(io::Result<()>),
}

impl FileTransfer {
    pub(crate) fn new(file: RawFd, offset: i64, count: Option<i64>) -> FileTransfer {
        let (offset, left, sent) = (Cell::new(offset), Cell::new(count.unwrap_or(i64::MAX)), Cell::new(0));
        FileTransfer { file, offset, left, sent }
    }

    /// Sends as much as the socket takes, or [`AT_ONCE`]. The end is told in the turn after the last piece, as in
    /// asyncio, whose transfer notices it when the socket has room again: a peer on the same loop reads first.
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
        self.ended(reason.unwrap_or_else(|| {
            // SAFETY: reading a static of the interpreter.
            raise_message(unsafe { ffi::PyExc_ConnectionError }, "Connection is closed by peer");
            Raised.take()
        }))
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
