//! What a transport still has to send.
//!
//! Everything in it is immutable `bytes`, kept by reference: the writes of one turn leave together, small ones joined in
//! one `send`, others in one `sendmsg`. Nothing here calls into Python, so the buffer can be used behind a shared
//! reference: what is taken out of it is dropped by the caller.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use smallvec::SmallVec;

use crate::capi::Ref;
use crate::capi::socket::SEND_FLAGS;

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
        many: fn(RawFd, &mut [libc::iovec]) -> io::Result<usize>,
        short_is_full: bool,
    ) -> io::Result<Sent> {
        while self.size > 0 {
            let (offered, count) = if self.queue.len() == 1 {
                let rest = self.queue[0].rest();
                (rest.len(), one(fd, rest))
            } else if self.size <= JOINED {
                self.joined(|data| (data.len(), one(fd, data)))
            } else {
                self.with_vectors(|vectors| {
                    (vectors.iter().map(|vector| vector.iov_len).sum(), many(fd, vectors))
                })
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

    /// Shows the first pieces as the kernel wants them.
    fn with_vectors<T>(&self, body: impl FnOnce(&mut [libc::iovec]) -> T) -> T {
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
        let mut count = 0;
        for (vector, piece) in vectors.iter_mut().zip(&self.queue) {
            let rest = piece.rest();
            *vector = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
            count += 1;
        }
        body(&mut vectors[..count])
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
fn send_many(fd: RawFd, vectors: &mut [libc::iovec]) -> io::Result<usize> {
    // SAFETY: all-zero is a valid message header; the vectors point to what the caller keeps alive.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len() as _;
        libc::sendmsg(fd, &message, SEND_FLAGS)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// One plain write.
pub(crate) fn write_one(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    // SAFETY: `data` is valid for its length.
    let sent = unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Several pieces in one write.
fn write_many(fd: RawFd, vectors: &mut [libc::iovec]) -> io::Result<usize> {
    // SAFETY: the vectors point to what the caller keeps alive.
    let sent = unsafe { libc::writev(fd, vectors.as_ptr(), vectors.len() as _) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// One plain send.
pub(crate) fn send_one(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    // SAFETY: `data` is valid for its length.
    let sent = unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), SEND_FLAGS) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}
