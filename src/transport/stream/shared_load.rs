//! Tells the processes that share a listening socket which of them have fewer connections than others.
//!
//! The processes have nothing in common but the socket, so they use its record locks (`fcntl(2)`). A process with N
//! connections holds a read lock of all bytes from N on. The question "has another process fewer than M connections?"
//! is then one F_GETLK for a write lock of the bytes before M, and "is there another process?" one for all bytes.
//! Read locks exclude nobody, and none is waited for. The kernel drops them when the process ends.
//!
//! The kernel also drops them when the process closes another descriptor of the same socket, so the loads are published
//! again from time to time. Where a socket cannot be locked, a process seems to be alone.
//!
//! Callers pass the descriptor that the Python socket has now, or -1: a number from before may belong to a file of the
//! program, whose own locks must not change.

use std::cell::Cell;
use std::os::fd::RawFd;

/// What this process has published about one socket.
#[derive(Debug, Default)]
pub(super) struct SharedLoad {
    published: Cell<Option<u32>>,
}

impl SharedLoad {
    /// Publishes the number of this process's connections.
    pub(super) fn publish(&self, fd: RawFd, load: u32) {
        match self.published.replace(Some(load)) {
            Some(before) if before == load => {}
            Some(before) if before < load => {
                lock(fd, libc::F_UNLCK as _, before.into(), (load - before).into())
            }
            _ => lock(fd, libc::F_RDLCK as _, load.into(), 0),
        }
    }

    /// Publishes the last number again. Before the first one, it is 0.
    pub(super) fn publish_again(&self, fd: RawFd) {
        self.publish(fd, self.published.take().unwrap_or(0));
    }

    /// No longer takes part.
    pub(super) fn withdraw(&self, fd: RawFd) {
        if self.published.take().is_some() {
            lock(fd, libc::F_UNLCK as _, 0, 0);
        }
    }
}

/// Another process that takes part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other {
    process: libc::pid_t,
    load: libc::off_t,
}

impl Other {
    /// Is it the same process as `before`, with another number of connections?
    pub(super) fn runs(self, before: Other) -> bool {
        self.process == before.process && self.load != before.load
    }
}

/// Do other processes take part?
pub(super) fn has_others(fd: RawFd) -> bool {
    locked_by(fd, 0).is_some()
}

/// The first other process that has fewer connections than `load`.
pub(super) fn with_less(fd: RawFd, load: u32) -> Option<Other> {
    if load == 0 { None } else { locked_by(fd, load.into()) }
}

/// `length` 0 means without end.
fn record(kind: libc::c_int, start: i64, length: i64) -> libc::flock {
    // SAFETY: all zeroes is a valid `flock`, which has more fields on some systems than on others.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = kind as _;
    record.l_whence = libc::SEEK_SET as _;
    record.l_start = start as _;
    record.l_len = length as _;
    record
}

fn lock(fd: RawFd, kind: libc::c_int, start: i64, length: i64) {
    let record = record(kind, start, length);
    // SAFETY: `record` is valid for the call. There is nothing to do about an error: see the head of this file.
    unsafe { libc::fcntl(fd, libc::F_SETLK, &record) };
}

/// The first other process that has a lock of one of the first `length` bytes.
fn locked_by(fd: RawFd, length: i64) -> Option<Other> {
    let mut record = record(libc::F_WRLCK as _, 0, length);
    // SAFETY: `record` is valid for the call, which writes to it.
    let asked = unsafe { libc::fcntl(fd, libc::F_GETLK, &mut record) };
    let is_free = record.l_type as libc::c_int == libc::F_UNLCK as libc::c_int;
    (asked == 0 && !is_free).then_some(Other { process: record.l_pid, load: record.l_start })
}
