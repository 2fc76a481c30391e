//! The data that a transport has not sent yet.
//!
//! It is a queue of immutable `bytes` objects, kept by reference. Small ones are joined and sent with one `send`,
//! others with one `sendmsg`. No method calls Python, so the buffer can be changed through a shared reference. For the
//! same reason the caller drops the objects that are removed.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use smallvec::SmallVec;

use crate::capi::error::no_memory;
use crate::capi::socket::{SEND_FLAGS, with_socket};
use crate::capi::{Raised, Ref};

/// The most pieces per `sendmsg`. The kernel allows 1,024, but more than some dozens do not make it faster.
const PIECES: usize = 64;

/// Up to this size, all pieces are copied and sent with one `send`. For a header and a small body that takes 0.15 us
/// less than a `sendmsg`, for which the kernel has to read the message header and the vectors first.
const JOINED: usize = 2048;

/// A `bytes` object. Its first `sent` bytes were sent.
#[derive(Debug)]
struct Piece {
    bytes: Ref,
    sent: usize,
}

impl Piece {
    fn rest(&self) -> &[u8] {
        &self.bytes.bytes().unwrap_or_default()[self.sent..]
    }
}

/// The queue of pieces and its size in bytes.
#[derive(Debug, Default)]
struct Pieces {
    queue: VecDeque<Piece>,
    size: usize,
}

/// The buffer. None of the methods runs Python code.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer(UnsafeCell<Pieces>);

/// The objects that were sent completely, for the caller to drop. One or two of them, such as a header and a body, need
/// no allocation.
pub(crate) type Done = SmallVec<[Ref; 2]>;

/// The outcome of a send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has accepted everything.
    All,
    /// The descriptor is full. The poller will report when it has room.
    Blocked,
}

impl WriteBuffer {
    /// Runs `body` with the pieces. It must not call this method again.
    #[inline(always)]
    fn with<T>(&self, body: impl FnOnce(&mut Pieces) -> T) -> T {
        // SAFETY: the type is not `Sync`, the function is private, and the bodies call neither Python nor this
        // function.
        body(unsafe { &mut *self.0.get() })
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.with(|pieces| pieces.size)
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects in the buffer, each with the number of its bytes that were sent.
    pub(crate) fn pieces(&self) -> Vec<(Ref, usize)> {
        self.with(|pieces| pieces.queue.iter().map(|piece| (piece.bytes.clone_ref(), piece.sent)).collect())
    }

    /// Are there as many objects as one system call takes?
    #[inline(always)]
    pub(crate) fn fills_a_call(&self) -> bool {
        self.with(|pieces| pieces.queue.len() >= PIECES)
    }

    /// Appends `bytes` without its first `sent` bytes.
    ///
    /// The object must be a `bytes` (or a subclass) with more than `sent` bytes.
    ///
    /// # Errors
    /// Raises MemoryError.
    #[inline(always)]
    pub(crate) fn push(&self, bytes: Ref, sent: usize) -> Result<(), Raised> {
        if self.with(|pieces| pieces.queue.len() == pieces.queue.capacity()) {
            self.reserve(1)?;
        }
        let piece = Piece { bytes, sent };
        self.with(|pieces| {
            pieces.size += piece.rest().len();
            pieces.queue.push_back(piece);
        });
        Ok(())
    }

    /// Makes room for so many objects.
    ///
    /// # Errors
    /// Raises MemoryError.
    #[cold]
    pub(crate) fn reserve(&self, count: usize) -> Result<(), Raised> {
        self.with(|pieces| pieces.queue.try_reserve(count)).map_err(|_| no_memory())
    }

    /// The first object, and how many of its bytes were sent.
    pub(crate) fn front(&self) -> Option<(Ref, usize)> {
        self.with(|pieces| pieces.queue.front().map(|piece| (piece.bytes.clone_ref(), piece.sent)))
    }

    /// Appends bytes from the front of the buffer to `target`, until `target` has `limit` bytes or there are no more.
    pub(crate) fn gather(&self, target: &mut Vec<u8>, limit: usize) {
        self.with(|pieces| {
            for piece in &pieces.queue {
                let rest = piece.rest();
                let room = limit - target.len();
                if room == 0 {
                    return;
                }
                target.extend_from_slice(&rest[..rest.len().min(room)]);
            }
        });
    }

    /// Removes everything, for the caller to drop.
    pub(crate) fn take(&self) -> impl Sized + use<> {
        self.with(std::mem::take)
    }

    /// Marks the first `count` bytes as sent. Moves completed objects to `done`.
    pub(crate) fn advance(&self, count: usize, done: &mut Done) {
        self.with(|pieces| pieces.advance(count, done));
    }

    /// Sends until the buffer is empty or the socket is full. Moves completed objects to `done`.
    ///
    /// # Errors
    /// The errors of the socket, except for `WouldBlock`.
    pub(crate) fn send(&self, fd: RawFd, done: &mut Done) -> io::Result<Sent> {
        self.with(|pieces| pieces.drain(fd, done, send_one, send_many, false))
    }

    /// The same with `write`, for a level-triggered descriptor: after a short write it is full. (With an edge-triggered
    /// one, writing must go on until it would block.)
    ///
    /// # Errors
    /// The errors of the descriptor, except for `WouldBlock`.
    pub(crate) fn write(&self, fd: RawFd, done: &mut Done) -> io::Result<Sent> {
        self.with(|pieces| pieces.drain(fd, done, write_one, write_many, true))
    }
}

impl Pieces {
    #[inline(always)]
    fn drain(
        &mut self,
        fd: RawFd,
        done: &mut Done,
        one: fn(RawFd, &[u8]) -> io::Result<usize>,
        many: fn(RawFd, &[IoSlice<'_>]) -> io::Result<usize>,
        short_is_full: bool,
    ) -> io::Result<Sent> {
        while self.size > 0 {
            let (offered, count) = if self.queue.len() == 1 {
                let rest = self.queue[0].rest();
                (rest.len(), one(fd, rest))
            } else if self.size <= JOINED {
                self.joined(|data| (data.len(), one(fd, data)))
            } else {
                let pieces: SmallVec<[_; PIECES]> =
                    self.queue.iter().take(PIECES).map(|piece| IoSlice::new(piece.rest())).collect();
                (pieces.iter().map(|piece| piece.len()).sum(), many(fd, &pieces))
            };
            match count {
                Ok(count) => {
                    self.advance(count, done);
                    if short_is_full && count < offered {
                        return Ok(Sent::Blocked);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Sent::All)
    }

    /// Calls `body` with a copy of all pieces in one slice. There must be at most [`JOINED`] bytes.
    fn joined<T>(&self, body: impl FnOnce(&[u8]) -> T) -> T {
        let mut room = [MaybeUninit::<u8>::uninit(); JOINED];
        let mut filled = 0;
        for piece in &self.queue {
            let rest = piece.rest();
            room[filled..filled + rest.len()].write_copy_of_slice(rest);
            filled += rest.len();
        }
        // SAFETY: the first `filled` bytes were written.
        body(unsafe { room[..filled].assume_init_ref() })
    }

    fn advance(&mut self, mut count: usize, done: &mut Done) {
        self.size -= count;
        while let Some(piece) = self.queue.front_mut() {
            let rest = piece.rest().len();
            if count < rest {
                piece.sent += count;
                return;
            }
            count -= rest;
            if let Some(piece) = self.queue.pop_front() {
                done.push(piece.bytes);
            }
        }
    }
}

/// Sends several pieces with one system call.
fn send_many(fd: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    with_socket(fd, |socket| socket.send_vectored_with_flags(pieces, SEND_FLAGS))
}

/// Sends one slice.
pub(crate) fn send_one(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    with_socket(fd, |socket| socket.send_with_flags(data, SEND_FLAGS))
}

/// Writes several pieces with one system call.
fn write_many(fd: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: an `IoSlice` has the layout of an `iovec`, and its memory is borrowed.
    let written = unsafe { libc::writev(fd, pieces.as_ptr().cast(), pieces.len() as _) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) }
}

/// Writes one slice.
pub(crate) fn write_one(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    write_many(fd, &[IoSlice::new(data)])
}
