//! The poller and its registration handle.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};

use mio::Waker;
use mio::unix::SourceFd;

use super::readiness::{Event, INTERNAL, Interest, Readiness, Token};
use super::sys;
use super::wait::Wait;

/// Waits for readiness on registered file descriptors.
pub struct Poller {
    poll: mio::Poll,
    events: mio::Events,
    precision: sys::Precision,
}

impl Poller {
    /// A poller that hands out at most `events` events per poll.
    ///
    /// # Errors
    /// When the system has no descriptor left for the epoll or kqueue instance.
    pub fn with_capacity(events: usize) -> io::Result<Poller> {
        let poll = mio::Poll::new()?;
        let precision = sys::Precision::new(poll.registry());
        Ok(Poller { poll, events: mio::Events::with_capacity(events.max(1)), precision })
    }

    /// Reports changes of readiness: after an event, the next one comes only when more arrives.
    ///
    /// # Errors
    /// `AlreadyExists` for a registered descriptor, `PermissionDenied` for a regular file, and the other errors
    /// of `epoll_ctl(2)` or `kevent(2)`.
    pub fn register_edge(&self, fd: RawFd, token: Token, interest: Interest) -> io::Result<()> {
        let token = checked(token)?;
        self.poll.registry().register(&mut SourceFd(&fd), token, interest.to_mio())
    }

    /// Changes token and interest of a registration and makes it edge-triggered. What is ready already is
    /// reported once more.
    ///
    /// # Errors
    /// `NotFound` if the descriptor is not registered.
    pub fn reregister_edge(&self, fd: RawFd, token: Token, interest: Interest) -> io::Result<()> {
        let token = checked(token)?;
        self.poll.registry().reregister(&mut SourceFd(&fd), token, interest.to_mio())
    }

    /// Reports readiness on every poll as long as it lasts.
    ///
    /// # Errors
    /// As [`Poller::register_edge`].
    pub fn register_level(&self, fd: RawFd, token: Token, interest: Interest) -> io::Result<()> {
        sys::set_level(self.poll.as_raw_fd(), fd, checked(token)?.0, interest, false)
    }

    /// Changes token and interest of a registration and makes it level-triggered.
    ///
    /// # Errors
    /// `NotFound` if the descriptor is not registered (Linux; kqueue registers it).
    pub fn reregister_level(&self, fd: RawFd, token: Token, interest: Interest) -> io::Result<()> {
        sys::set_level(self.poll.as_raw_fd(), fd, checked(token)?.0, interest, true)
    }

    /// Registers a listening socket that several processes share, level-triggered, behind the pollers that have it
    /// already. Each connection wakes only the first of the pollers that wait. On systems without EPOLLEXCLUSIVE it
    /// wakes all of them.
    ///
    /// Such a registration cannot be changed, only be ended. A poller that ends and makes it again stands behind all
    /// others. If its process ends or stops after the wake-up, nobody else is woken for that connection.
    ///
    /// # Errors
    /// As [`Poller::register_edge`].
    pub fn register_exclusive(&self, fd: RawFd, token: Token) -> io::Result<()> {
        sys::add_exclusive(self.poll.as_raw_fd(), fd, checked(token)?.0)
    }

    /// Registers a descriptor as [`Poller::register_edge`] does, or changes the registration that it has.
    ///
    /// # Errors
    /// As [`Poller::register_edge`], without `AlreadyExists`.
    pub fn ensure_edge(&self, fd: RawFd, token: Token, interest: Interest) -> io::Result<()> {
        let registered = self.register_edge(fd, token, interest);
        or_if(registered, ErrorKind::AlreadyExists, || self.reregister_edge(fd, token, interest))
    }

    /// Registers a descriptor as [`Poller::register_level`] does, or changes the registration that it has.
    ///
    /// # Errors
    /// As [`Poller::register_level`], without `AlreadyExists`.
    pub fn ensure_level(&self, fd: RawFd, token: Token, interest: Interest) -> io::Result<()> {
        let registered = self.register_level(fd, token, interest);
        or_if(registered, ErrorKind::AlreadyExists, || self.reregister_level(fd, token, interest))
    }

    /// Does the same as [`Poller::ensure_level`], with one system call less for a descriptor that is registered.
    ///
    /// # Errors
    /// As [`Poller::ensure_level`].
    pub fn update_level(&self, fd: RawFd, token: Token, interest: Interest) -> io::Result<()> {
        let changed = self.reregister_level(fd, token, interest);
        or_if(changed, ErrorKind::NotFound, || self.register_level(fd, token, interest))
    }

    /// Ends a registration of either kind. Events that the last poll collected are still returned.
    ///
    /// # Errors
    /// `NotFound` if there is none; an error of kind other or uncategorised (`EBADF`) if `fd` is closed.
    pub fn deregister(&self, fd: RawFd) -> io::Result<()> {
        self.poll.registry().deregister(&mut SourceFd(&fd))
    }

    /// Returns the waker of this poller, to be shared by reference or `Arc`. Call this once.
    ///
    /// A wake, from any thread, makes a blocked or the next poll return with an event under `token`. Wakes that
    /// come before the poll notices merge into one event.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn waker(&self, token: Token) -> io::Result<Waker> {
        Waker::new(self.poll.registry(), checked(token)?)
    }

    /// Returns a handle through which other threads register descriptors. It costs one descriptor.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn registrar(&self) -> io::Result<Registrar> {
        Ok(Registrar { registry: self.poll.registry().try_clone()? })
    }

    /// Waits until something is ready, or for as long as `wait` says.
    ///
    /// It may return early and without events. It is never late by more than scheduling noise. A caller with a
    /// deadline looks at the clock and polls again. On Linux a timerfd is set for the deadline, unless it is set
    /// for this one or an earlier one already. So a deadline costs a system call only if it is the first, or nearer
    /// than the last. A poll that does not wait is exactly one system call.
    ///
    /// # Errors
    /// `Interrupted` when a signal arrived: the caller decides whether that matters. There are no events then.
    #[inline(always)]
    pub fn poll(&mut self, wait: Wait) -> io::Result<()> {
        let done = self.precision.poll(&mut self.poll, &mut self.events, wait);
        if done.is_err() {
            self.events.clear();
        }
        done
    }

    /// Polls without waiting, again and again until something is ready, or until `clock` has reached `until`. Returns
    /// how many polls that were.
    ///
    /// # Errors
    /// As [`poll`](Poller::poll).
    pub fn spin(&mut self, until: u64, clock: impl Fn() -> u64) -> io::Result<u64> {
        let mut polls = 0;
        loop {
            self.poll(Wait::Not)?;
            polls += 1;
            if self.events().next().is_some() || clock() >= until {
                return Ok(polls);
            }
        }
    }

    /// Iterates over the events of the last poll.
    pub fn events(&self) -> impl Iterator<Item = Event> + Clone {
        self.events
            .iter()
            .filter(|event| event.token() != INTERNAL)
            .map(|event| Event { token: Token(event.token().0), readiness: Readiness::from_mio(event) })
    }
}

impl AsRawFd for Poller {
    /// The epoll or kqueue descriptor itself, for callers that nest pollers.
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("fd", &self.poll.as_raw_fd()).finish_non_exhaustive()
    }
}

/// Registers descriptors with a [`Poller`] from any thread. It may outlive its poller.
#[derive(Debug)]
pub struct Registrar {
    registry: mio::Registry,
}

impl Registrar {
    /// As [`Poller::register_edge`].
    ///
    /// # Errors
    /// As [`Poller::register_edge`].
    pub fn register_edge(&self, fd: RawFd, token: Token, interest: Interest) -> io::Result<()> {
        self.registry.register(&mut SourceFd(&fd), checked(token)?, interest.to_mio())
    }

    /// As [`Poller::deregister`].
    ///
    /// # Errors
    /// As [`Poller::deregister`].
    pub fn deregister(&self, fd: RawFd) -> io::Result<()> {
        self.registry.deregister(&mut SourceFd(&fd))
    }
}

/// The first result, or that of another try if the first failed with this kind of error.
fn or_if(first: io::Result<()>, kind: ErrorKind, other: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if first.as_ref().is_err_and(|error| error.kind() == kind) { other() } else { first }
}

fn checked(token: Token) -> io::Result<mio::Token> {
    let token = mio::Token(token.0);
    if token == INTERNAL {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this token is reserved for the poller"));
    }
    Ok(token)
}
