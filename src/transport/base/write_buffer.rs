//! What a transport still has to send.
//!
//! Everything in it is immutable `bytes`, kept by reference: the writes of one turn leave together, small ones
//! joined in one `send`, others in one `sendmsg`. Nothing here calls into Python but the release of what was sent.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use smallvec::SmallVec;

use crate::capi::Ref;
use crate::capi::buffer::bytes_slice;

/// How many pieces one `sendmsg` takes. The kernel allows 1,024; past some dozens nothing is gained.
const PIECES: usize = 64;

/// Up to how many bytes pieces are copied together: for a header and a small body a `send` of the copy takes
/// 0.15 us less than a `sendmsg`, which has the kernel fetch a message and its vectors first.
const JOINED: usize = 2048;

#[cfg(any(target_os = "linux", target_os = "android"))]
const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const FLAGS: i32 = libc::MSG_DONTWAIT;

/// A `bytes` object of which the first `sent` bytes are gone.
#[derive(Debug)]
struct Piece {
    bytes: Ref,
    sent: usize,
}

impl Piece {
    fn rest(&self) -> &[u8] {
        // SAFETY: a piece is made of a bytes object, which it keeps alive.
        unsafe { &bytes_slice(self.bytes.as_ptr())[self.sent..] }
    }
}

/// The queue of pieces and its size in bytes.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    pieces: VecDeque<Piece>,
    size: usize,
}

/// What a send has used up, for the caller to drop when the buffer is no longer borrowed. One piece is the
/// rule, two are a header and a body; neither needs an allocation.
pub(crate) type Done = SmallVec<[Ref; 2]>;

/// How a flush ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Everything is with the kernel.
    All,
    /// The descriptor takes no more; the poller will tell when it does.
    Blocked,
}

impl WriteBuffer {
    pub(crate) fn len(&self) -> usize {
        self.size
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Appends `bytes` without its first `sent` bytes.
    ///
    /// The object must be a `bytes` (or a subclass) with more than `sent` bytes.
    pub(crate) fn push(&mut self, bytes: Ref, sent: usize) {
        let piece = Piece { bytes, sent };
        self.size += piece.rest().len();
        self.pieces.push_back(piece);
    }

    /// The first piece, as far as it is not sent.
    pub(crate) fn front(&self) -> Option<(Ref, usize)> {
        self.pieces.front().map(|piece| (piece.bytes.clone_ref(), piece.sent))
    }

    /// Copies the first `limit` bytes, or fewer if there are no more.
    pub(crate) fn gather(&self, target: &mut Vec<u8>, limit: usize) {
        for piece in &self.pieces {
            let rest = piece.rest();
            let room = limit - target.len();
            if room == 0 {
                return;
            }
            target.extend_from_slice(&rest[..rest.len().min(room)]);
        }
    }

    /// Takes everything out, for the caller to drop once the buffer is no longer borrowed.
    pub(crate) fn take(&mut self) -> impl Sized + use<> {
        self.size = 0;
        std::mem::take(&mut self.pieces)
    }

    /// Sends until the buffer is empty or the socket is full. What is sent lands in `done`, for the caller
    /// to drop when the buffer is no longer borrowed.
    ///
    /// # Errors
    /// What the socket reports, except that it would block.
    pub(crate) fn send(&mut self, fd: RawFd, done: &mut Done) -> io::Result<Sent> {
        self.drain(fd, done, send_one, send_many, false)
    }

    /// The same for a descriptor that is written to, and that is watched as long as it has room: one that
    /// takes less than it could have is full, and needs not be tried again for an edge.
    ///
    /// # Errors
    /// What the descriptor reports, except that it would block.
    pub(crate) fn write(&mut self, fd: RawFd, done: &mut Done) -> io::Result<Sent> {
        self.drain(fd, done, write_one, write_many, true)
    }

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
            let (offered, count) = if self.pieces.len() == 1 {
                let rest = self.pieces[0].rest();
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
        for piece in &self.pieces {
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
        for (vector, piece) in vectors.iter_mut().zip(&self.pieces) {
            let rest = piece.rest();
            *vector = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
            count += 1;
        }
        body(&mut vectors[..count])
    }

    /// Drops the first `count` bytes. Pieces that are used up land in `done`.
    pub(crate) fn advance(&mut self, mut count: usize, done: &mut Done) {
        self.size -= count;
        while let Some(piece) = self.pieces.front_mut() {
            let rest = piece.rest().len();
            if count < rest {
                piece.sent += count;
                return;
            }
            count -= rest;
            if let Some(piece) = self.pieces.pop_front() {
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
        libc::sendmsg(fd, &message, FLAGS)
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
    let sent = unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), FLAGS) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}
