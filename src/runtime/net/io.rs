//! A non-blocking source with its registration: the part that all sockets share.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::runtime::context;
use crate::runtime::driver::{Direction, Handle, Registration};

/// A source that is non-blocking and registered while this is alive.
pub(super) struct Io<S> {
    // Dropped first: a descriptor is deregistered before it is closed.
    registration: Registration,
    source: S,
}

/// Whether to try at once or to wait for the first event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    Try,
    Wait,
}

impl<S: AsRawFd> Io<S> {
    /// Registers `source`, already non-blocking, with the runtime of the current thread.
    pub(super) fn new(source: S, first: First) -> io::Result<Io<S>> {
        Io::on(&driver()?, source, first)
    }

    /// As `new`, with a given driver.
    fn on(driver: &Arc<Handle>, source: S, first: First) -> io::Result<Io<S>> {
        let registration = Registration::new(driver, source.as_raw_fd(), first == First::Try)?;
        Ok(Io { registration, source })
    }

    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// Writes up to `len` bytes. A short write means that no more fits.
    pub(super) async fn write_some(
        &self,
        len: usize,
        mut write: impl FnMut(&S) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let short = move |&sent: &usize| sent < len;
        self.registration.run(Direction::Write, || write(&self.source), short).await
    }

    /// Waits until an operation in this direction is worth trying.
    pub(super) async fn ready(&self, direction: Direction) -> io::Result<()> {
        self.registration.ready(direction).await
    }

    /// As `run_until`, without waiting.
    pub(super) fn try_until<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&S) -> io::Result<(R, bool)>,
    ) -> io::Result<(R, bool)> {
        self.registration.attempt(direction, || operation(&self.source), |(_, exhausted)| *exhausted)
    }

    /// As `write_some`, without waiting.
    pub(super) fn try_write_some(
        &self,
        len: usize,
        write: impl FnOnce(&S) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let short = |&sent: &usize| sent < len;
        self.registration.attempt(Direction::Write, || write(&self.source), short)
    }

    /// Runs an operation whose success says nothing about the next one.
    pub(super) async fn run<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&S) -> io::Result<R>,
    ) -> io::Result<R> {
        self.registration.run(direction, || operation(&self.source), |_| false).await
    }

    /// As `run`, without waiting.
    pub(super) fn try_run<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&S) -> io::Result<R>,
    ) -> io::Result<R> {
        self.registration.attempt(direction, || operation(&self.source), |_| false)
    }

    /// Runs an operation whose result says whether it left something behind.
    pub(super) async fn run_until<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&S) -> io::Result<(R, bool)>,
    ) -> io::Result<(R, bool)> {
        self.registration.run(direction, || operation(&self.source), |(_, exhausted)| *exhausted).await
    }

    /// Returns the source, which stays non-blocking.
    pub(super) fn into_source(self) -> S {
        drop(self.registration);
        self.source
    }
}

impl<S: AsRawFd + From<OwnedFd>> Io<S> {
    /// Connects a new stream socket.
    pub(super) async fn connect(address: &SockAddr) -> io::Result<Io<S>> {
        let socket = nonblocking_stream(address.domain())?;
        let done = match socket.connect(address) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => false,
            Err(error) => return Err(error),
        };
        let first = if done { First::Try } else { First::Wait };
        let io = Io::new(socket, first)?;
        if !done {
            let finish = |socket: &Socket| match socket.take_error()? {
                Some(error) => Err(error),
                None => match socket.peer_addr() {
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                        Err(io::ErrorKind::WouldBlock.into())
                    }
                    other => other.map(drop),
                },
            };
            io.run(Direction::Write, finish).await?;
        }
        Ok(io.map(|socket| S::from(OwnedFd::from(socket))))
    }
}

impl<S> Io<S> {
    /// Converts the source to another type for the same descriptor.
    fn map<T>(self, convert: impl FnOnce(S) -> T) -> Io<T> {
        Io { registration: self.registration, source: convert(self.source) }
    }
}

impl<S: fmt::Debug> fmt::Debug for Io<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// Returns the driver of the current thread's runtime.
fn driver() -> io::Result<Arc<Handle>> {
    context::try_with(|shared| shared.open_driver().cloned()).unwrap_or_else(|| {
        Err(io::Error::other("a socket needs a wakeloop runtime: make it in a task or inside block_on"))
    })
}

fn nonblocking_stream(domain: Domain) -> io::Result<Socket> {
    #[cfg(not(target_vendor = "apple"))]
    return Socket::new(domain, Type::STREAM.nonblocking(), None);
    #[cfg(target_vendor = "apple")]
    {
        let socket = Socket::new(domain, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// Converts a listening or datagram socket to its std type.
pub(super) fn into_std<S: FromRawFd>(socket: Socket) -> S {
    // SAFETY: the descriptor is open, and its ownership is passed on.
    unsafe { S::from_raw_fd(socket.into_raw_fd()) }
}
