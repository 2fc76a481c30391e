//! The system calls of a file that is read and written at the descriptor's own offset, as Python's `io` does.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};

/// The result of a read that must not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has such reads"))]
pub(super) enum Now {
    /// So many bytes; 0 at the end of the file.
    Read(usize),
    /// The data is not in the page cache.
    WouldBlock,
    /// The system cannot say whether a read of this file would wait.
    Unsupported,
}

/// Reads at the descriptor's offset, or at another one, which is not negative, if that needs no wait.
#[cfg(target_os = "linux")]
pub(super) fn read_now(fd: RawFd, place: &mut [MaybeUninit<u8>], asked: Option<i64>) -> io::Result<Now> {
    let part = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
    // An offset of -1 means that of the descriptor. The kernel takes it in two halves, of which 64-bit systems need one.
    let offset = asked.unwrap_or(-1);
    let (low, high) = (offset as libc::c_long, (offset >> 32) as libc::c_long);
    // The C library has this call since glibc 2.26 only.
    // SAFETY: one buffer that is exclusively borrowed for the call.
    let count = unsafe {
        libc::syscall(libc::SYS_preadv2, fd, &raw const part, 1_usize, low, high, libc::RWF_NOWAIT)
    };
    if count > 0 || (count == 0 && (place.is_empty() || is_at_end(fd, asked))) {
        return Ok(Now::Read(count as usize));
    }
    if count == 0 {
        // Linux 5.9 and 5.10 return 0 for a page that is not up to date.
        return Ok(Now::WouldBlock);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(Now::WouldBlock),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EPERM) => Ok(Now::Unsupported),
        _ => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn read_now(_: RawFd, _: &mut [MaybeUninit<u8>], _: Option<i64>) -> io::Result<Now> {
    Ok(Now::Unsupported)
}

/// Is the offset at or behind the end of a regular file?
#[cfg(target_os = "linux")]
fn is_at_end(fd: RawFd, offset: Option<i64>) -> bool {
    let here = offset.map_or_else(|| seek(fd, 0, libc::SEEK_CUR), Ok);
    matches!((here, size(fd)), (Ok(here), Ok(size)) if here >= size)
}

/// Waits for data and reads it; 0 at the end.
pub(super) fn read(fd: RawFd, place: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    // SAFETY: a buffer that is exclusively borrowed for the call.
    retry(|| unsafe { libc::read(fd, place.as_mut_ptr().cast(), place.len().min(LARGEST)) })
}

pub(super) fn read_at(fd: RawFd, place: &mut [MaybeUninit<u8>], offset: i64) -> io::Result<usize> {
    // SAFETY: a buffer that is exclusively borrowed for the call.
    retry(|| unsafe { libc::pread(fd, place.as_mut_ptr().cast(), place.len().min(LARGEST), offset) })
}

/// Writes a part of the data at least. Waits for room, even if the descriptor is a non-blocking one.
pub(super) fn write(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    loop {
        match write_once(fd, data) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], -1)?;
            }
            outcome => return outcome,
        }
    }
}

/// Writes a part of the data at least, or fails because a non-blocking descriptor has no room, or because of a signal.
pub(super) fn write_once(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    // SAFETY: the data is borrowed for the call.
    done(unsafe { libc::write(fd, data.as_ptr().cast(), data.len().min(LARGEST)) })
}

pub(super) fn write_at(fd: RawFd, data: &[u8], offset: i64) -> io::Result<usize> {
    // SAFETY: the data is borrowed for the call.
    retry(|| unsafe { libc::pwrite(fd, data.as_ptr().cast(), data.len().min(LARGEST), offset) })
}

/// Moves the descriptor's offset, and returns the new one.
pub(super) fn seek(fd: RawFd, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: a call without pointers.
    let result = unsafe { libc::lseek(fd, offset, whence) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn truncate(fd: RawFd, size: i64) -> io::Result<()> {
    // SAFETY: a call without pointers.
    retry(|| unsafe { libc::ftruncate(fd, size) } as isize).map(drop)
}

pub(super) fn sync(fd: RawFd) -> io::Result<()> {
    // SAFETY: a call without pointers.
    retry(|| unsafe { libc::fsync(fd) } as isize).map(drop)
}

/// The length of the file in bytes.
pub(super) fn size(fd: RawFd) -> io::Result<i64> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills the place if it returns 0, and only then is it read.
    unsafe {
        if libc::fstat(fd, found.as_mut_ptr()) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(found.assume_init().st_size)
    }
}

/// Waits until there is something to read, or until the other end of `cancel` is shut down. Returns false for that.
pub(super) fn wait_readable(fd: RawFd, cancel: &impl AsRawFd) -> io::Result<bool> {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(fd), entry(cancel.as_raw_fd())];
    poll(&mut entries, -1)?;
    Ok(entries[1].revents == 0)
}

/// Waits for so many milliseconds. Is there something to read?
pub(super) fn is_readable_within(fd: RawFd, milliseconds: i32) -> io::Result<bool> {
    poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], milliseconds).map(|ready| ready > 0)
}

/// Waits until one of the descriptors is ready, for so many milliseconds, or without a limit for -1. Returns how many
/// are ready.
fn poll(entries: &mut [libc::pollfd], milliseconds: i32) -> io::Result<usize> {
    // SAFETY: the entries are exclusively borrowed for the call.
    retry(|| unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) } as isize)
}

/// Linux transfers no more than this at once, and other systems refuse to.
const LARGEST: usize = 0x7fff_f000;

/// The result of a call that says -1 for an error.
fn done(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match done(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}
