//! The owner's side of a registered socket.

use std::future::poll_fn;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::task::Poll;

use super::handle::Handle;
use super::registration::{Direction, SHUTDOWN, Socket, SocketWait};
use crate::reactor::{Readiness, Token};
use crate::runtime::coop;

/// The owner's side of a registered descriptor. Dropping it ends the registration: drop it before the
/// descriptor is closed.
pub(in super::super) struct Registration {
    driver: Arc<Handle>,
    socket: Arc<Socket>,
    token: Token,
    fd: RawFd,
}

impl Registration {
    /// Registers `fd`, which must be non-blocking, with an open driver. `ready` says whether to assume at first
    /// that operations succeed (connected sockets, listeners), instead of waiting for an event (a connect under
    /// way).
    pub(in super::super) fn new(driver: &Arc<Handle>, fd: RawFd, ready: bool) -> io::Result<Registration> {
        let assumed = if ready { Readiness::READABLE | Readiness::WRITABLE } else { Readiness::EMPTY };
        let socket = Arc::new(Socket::new(assumed));
        let token = driver.registrations.insert(&socket, || driver.is_closed()).ok_or_else(gone)?;
        // From here on, the drop of the registration cleans up.
        let registration = Registration { driver: driver.clone(), socket, token, fd };
        driver.register(fd, token)?;
        Ok(registration)
    }

    /// Waits until an operation in this direction is worth trying. Cancel-safe.
    pub(in super::super) async fn ready(&self, direction: Direction) -> io::Result<()> {
        let waiting = SocketWait::new(&self.socket, direction);
        poll_fn(move |cx| {
            let seen = coop::spend(cx, |cx| waiting.poll(cx));
            seen.map(|seen| if seen & SHUTDOWN == 0 { Ok(()) } else { Err(gone()) })
        })
        .await
    }

    /// Tries `operation` once, or not at all if the socket is known not to be ready. For its results see
    /// [`Registration::run`].
    ///
    /// # Errors
    /// `WouldBlock`, after which `ready` waits for the next event; else those of `operation`.
    pub(in super::super) fn attempt<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce() -> io::Result<(R, bool)>,
    ) -> io::Result<R> {
        let seen = self.socket.load();
        if seen & SHUTDOWN != 0 {
            return Err(gone());
        }
        if seen & direction.wanted() == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let result = operation();
        self.note(&result, seen, direction);
        result.map(|(result, _)| result)
    }

    /// Notes what the result of an operation says about the socket, as of `seen`.
    fn note<R>(&self, result: &io::Result<(R, bool)>, seen: usize, direction: Direction) {
        match result {
            Ok((_, true)) if direction.may_be_exhausted(seen) => self.socket.clear_exhausted(seen, direction),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.socket.clear(seen, direction),
            _ => {}
        }
    }

    /// Tries `operation` when the socket may be ready, and waits when it is not. The operation also returns
    /// whether it exhausted the socket: it read all that was there, or filled the socket's buffer. If so, the
    /// next call waits at once.
    ///
    /// This is as cancel-safe as `operation`, which either runs to its end or not at all. Any number of tasks
    /// may wait.
    pub(in super::super) async fn run<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<(R, bool)>,
    ) -> io::Result<R> {
        let waiting = SocketWait::new(&self.socket, direction);
        // The closure owns what it changes, so the future is `Send`.
        poll_fn(move |cx| {
            coop::spend(cx, |cx| {
                loop {
                    let seen = match waiting.poll(cx) {
                        Poll::Ready(seen) => seen,
                        Poll::Pending => return Poll::Pending,
                    };
                    if seen & SHUTDOWN != 0 {
                        return Poll::Ready(Err(gone()));
                    }
                    let result = operation();
                    self.note(&result, seen, direction);
                    match result {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            // A closed bit is set, but the operation would still block: only a new event helps.
                            if waiting.is_stuck(seen, cx) {
                                return Poll::Pending;
                            }
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        result => return Poll::Ready(result.map(|(result, _)| result)),
                    }
                }
            })
        })
        .await
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.driver.deregister(self.fd);
        self.driver.registrations.remove(self.token);
    }
}

fn gone() -> io::Error {
    io::Error::other("the runtime of this socket was shut down")
}
