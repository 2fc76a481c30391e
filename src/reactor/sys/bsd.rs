//! macOS and the BSDs. kqueue filters without EV_CLEAR are level-triggered, and kqueue's timeouts have
//! nanoseconds.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::super::readiness::Interest;
use super::super::wait::Wait;
use super::common::{check, timeout};

pub(in super::super) fn set_level(
    poll: RawFd,
    fd: RawFd,
    token: usize,
    interest: Interest,
    registered: bool,
) -> io::Result<()> {
    for (kind, wanted) in
        [(libc::EVFILT_READ, interest.is_read()), (libc::EVFILT_WRITE, interest.is_write())]
    {
        // EV_ADD on an existing filter updates it but keeps EV_CLEAR of an edge-triggered one, so remove it first.
        if registered {
            filter(poll, fd, token, kind as _, false)?;
        }
        filter(poll, fd, token, kind as _, wanted)?;
    }
    Ok(())
}

/// kqueue has nothing like EPOLLEXCLUSIVE.
pub(in super::super) fn add_exclusive(poll: RawFd, fd: RawFd, token: usize) -> io::Result<()> {
    set_level(poll, fd, token, Interest::READ, false)
}

/// Adds or removes one filter. Removing a filter that is not there is no error.
fn filter(poll: RawFd, fd: RawFd, token: usize, filter: i16, wanted: bool) -> io::Result<()> {
    // SAFETY: all-zero is a valid `kevent`, which has more fields on some systems than on others.
    let mut change: libc::kevent = unsafe { std::mem::zeroed() };
    change.ident = fd as _;
    change.filter = filter as _;
    change.flags = if wanted { libc::EV_ADD } else { libc::EV_DELETE } as _;
    change.udata = token as _;
    // SAFETY: one change is read from a valid pointer, no events are written (their count is zero).
    let result = unsafe { libc::kevent(poll, &change, 1, std::ptr::null_mut(), 0, std::ptr::null()) };
    match check(result as libc::c_int) {
        Err(error) if !wanted && error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other.map(drop),
    }
}

/// These systems have no flag that says so, so every read may have been cut.
pub(in super::super) fn may_be_cut(_: libc::c_int) -> bool {
    true
}

/// kqueue is precise by itself.
pub(in super::super) struct Precision;

impl Precision {
    pub(in super::super) fn new(_: &mio::Registry) -> Precision {
        Precision
    }

    pub(in super::super) fn poll(
        &mut self,
        poll: &mut mio::Poll,
        events: &mut mio::Events,
        wait: Wait,
    ) -> io::Result<()> {
        poll.poll(events, timeout(wait))
    }
}

/// These systems have no descriptor of this kind.
#[derive(Debug)]
pub struct Alarm(std::convert::Infallible);

impl Alarm {
    /// # Errors
    /// `Unsupported`, always.
    pub fn new() -> io::Result<Alarm> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn set(&self, _after: Duration) -> io::Result<()> {
        match self.0 {}
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        match self.0 {}
    }
}
