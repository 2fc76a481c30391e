//! What a transport still has to send.
//!
//! Everything in it is immutable `bytes`, kept by reference: the writes of one turn leave together, small ones joined in
//! one `send`, others in one `sendmsg`. Nothing here calls into Python, so the buffer can be used behind a shared
//! reference: what is taken out of it is dropped by the caller.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use smallvec::SmallVec;

use crate::capi::Ref;
use crate::capi::socket::{SEND_FLAGS, with_socket};

/// How many pieces one `sendmsg` takes. The kernel allows 1,024; past some dozens nothing is gained.
const PIECES: usize = 64;

/// Up to how many bytes pieces are copied together: for a header and a small body a `send` of the copy takes
/// 0.15 us less than a `sendmsg`, which has the kernel fetch a message and its vectors first.
const JOINED: usize = 2048;

/// A `bytes` object of which the first `sent` bytes are gone.
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

/// What waits to be sent. None of the methods runs Python.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer(UnsafeCell<Pieces>);

/// What a send has used up, for the caller to drop. One piece is the rule, two are a header and a body; neither needs an allocation.
pub(crate) type Done = SmallVec<[Ref; 2]>;

/// How a flush ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Everything is with the kernel.
    All,
    /// The descriptor takes no more. The poller will report when it does.
    Blocked,
}

impl WriteBuffer {
    /// Lends the pieces to one of the methods below, none of which comes back here before it returns.
    #[inline(always)]
    fn with<T>(&self, body: impl FnOnce(&mut Pieces) -> T) -> T {
        // SAFETY: the type is not `Sync`, the function is private, and its callers run neither Python nor each other.
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

    /// Appends `bytes` without its first `sent` bytes.
    ///
    /// The object must be a `bytes` (or a subclass) with more than `sent` bytes.
    #[inline(always)]
    pub(crate) fn push(&self, bytes: Ref, sent: usize) {
        let piece = Piece { bytes, sent };
        self.with(|pieces| {
            pieces.size += piece.rest().len();
            pieces.queue.push_back(piece);
        });
    }

    /// The first piece, as far as it is not sent.
    pub(crate) fn front(&self) -> Option<(Ref, usize)> {
        self.with(|pieces| pieces.queue.front().map(|piece| (piece.bytes.clone_ref(), piece.sent)))
    }

    /// Copies the first `limit` bytes, or fewer if there are no more.
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

    /// Takes everything out, for the caller to drop.
    pub(crate) fn take(&self) -> impl Sized + use<> {
        self.with(std::mem::take)
    }

    /// Drops the first `count` bytes. Pieces that are used up land in `done`.
    pub(crate) fn advance(&self, count: usize, done: &mut Done) {
        self.with(|pieces| pieces.advance(count, done));
    }

    /// Sends until the buffer is empty or the socket is full. What is sent lands in `done`, for the caller to drop.
    ///
    /// # Errors
    /// What the socket reports, except that it would block.
    pub(crate) fn send(&self, fd: RawFd, done: &mut Done) -> io::Result<Sent> {
        self.with(|pieces| pieces.drain(fd, done, send_one, send_many, false))
    }

    /// The same for a descriptor that is written to, and that is watched as long as it has room: one that takes less than
    /// it could have is full, and needs not be tried again for an edge.
    ///
    /// # Errors
    /// What the descriptor reports, except that it would block.
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

    /// Shows all pieces in a row. There must be no more than [`JOINED`] bytes.
    fn joined<T>(&self, body: impl FnOnce(&[u8]) -> T) -> T {
        let mut room = [MaybeUninit::<u8>::uninit(); JOINED];
        let mut filled = 0;
        for piece in &self.queue {
            let rest = piece.rest();
            room[filled..filled + rest.len()].write_copy_of_slice(rest);
            filled += rest.len();
        }
        // SAFETY: so many bytes were written, from the start on.
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

/// Several pieces in one send.
fn send_many(fd: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    with_socket(fd, |socket| socket.send_vectored_with_flags(pieces, SEND_FLAGS))
}

/// One plain send.
pub(crate) fn send_one(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    with_socket(fd, |socket| socket.send_with_flags(data, SEND_FLAGS))
}

/// Several pieces in one write.
fn write_many(fd: RawFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: an `IoSlice` is an `iovec`; what it points to is borrowed.
    let written = unsafe { libc::writev(fd, pieces.as_ptr().cast(), pieces.len() as _) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) }
}

/// One plain write.
pub(crate) fn write_one(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    write_many(fd, &[IoSlice::new(data)])
}
