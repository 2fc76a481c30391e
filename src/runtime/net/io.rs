//! A non-blocking source with its registration: the part that all sockets share.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
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
        let registration = Registration::new(&driver()?, source.as_raw_fd(), first == First::Try)?;
        Ok(Io { registration, source })
    }

    pub(super) fn source(&self) -> &S {
        &self.source
    }

    /// Waits until an operation in this direction is worth trying.
    pub(super) async fn ready(&self, direction: Direction) -> io::Result<()> {
        self.registration.ready(direction).await
    }

    /// Runs an operation that also returns whether it exhausted the socket, as for [`Registration::run`].
    pub(super) async fn run_until<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&S) -> io::Result<(R, bool)>,
    ) -> io::Result<R> {
        self.registration.run(direction, || operation(&self.source)).await
    }

    /// As `run_until`, without waiting.
    pub(super) fn try_until<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&S) -> io::Result<(R, bool)>,
    ) -> io::Result<R> {
        self.registration.attempt(direction, || operation(&self.source))
    }

    /// Runs an operation that does not know whether it exhausted the socket.
    pub(super) async fn run<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&S) -> io::Result<R>,
    ) -> io::Result<R> {
        self.registration.run(direction, || Ok((operation(&self.source)?, false))).await
    }

    /// As `run`, without waiting.
    pub(super) fn try_run<R>(
        &self,
        direction: Direction,
        operation: impl FnOnce(&S) -> io::Result<R>,
    ) -> io::Result<R> {
        self.registration.attempt(direction, || Ok((operation(&self.source)?, false)))
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
            // After EINTR the connection is made in the background too.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => false,
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

/// Implements what all sockets have, for a struct with a field `io: Io<…>`.
macro_rules! socket_methods {
    ($socket:ident, $address:ty) => {
        impl $socket {
            /// Returns the local address.
            ///
            /// # Errors
            /// Those of `getsockname(2)`.
            pub fn local_addr(&self) -> io::Result<$address> {
                self.io.source().local_addr()
            }
        }

        impl std::os::fd::AsFd for $socket {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.io.source().as_fd()
            }
        }

        impl std::os::fd::AsRawFd for $socket {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                self.io.source().as_raw_fd()
            }
        }
    };
}

/// Implements what streams and datagram sockets have in common, for a struct with a field `io: Io<$source>`.
macro_rules! peer_methods {
    ($socket:ident, $source:ty, $address:ty) => {
        crate::runtime::net::io::socket_methods!($socket, $address);

        impl $socket {
            /// Returns the address of the connected peer.
            ///
            /// # Errors
            /// `NotConnected` if there is none, or if it is gone already.
            pub fn peer_addr(&self) -> io::Result<$address> {
                self.io.source().peer_addr()
            }

            /// Waits until there is something to receive, or the stream has ended. Then call a method that begins
            /// with `try_`: it needs a buffer only during that call. So thousands of idle connections can share
            /// the few buffers of the threads that serve them. May return early. Cancel-safe.
            ///
            /// # Errors
            /// After the runtime was shut down.
            pub async fn readable(&self) -> io::Result<()> {
                self.io.ready(Direction::Read).await
            }

            /// As `readable`, for sending.
            ///
            /// # Errors
            /// As `readable`.
            pub async fn writable(&self) -> io::Result<()> {
                self.io.ready(Direction::Write).await
            }

            /// Puts a socket on the runtime of the current thread and makes it non-blocking.
            ///
            /// # Errors
            /// If there is no runtime, or if the socket cannot be registered.
            pub fn from_std(socket: $source) -> io::Result<$socket> {
                socket.set_nonblocking(true)?;
                Ok($socket { io: Io::new(socket, First::Try)? })
            }

            /// Takes the socket off the runtime. It stays non-blocking.
            pub fn into_std(self) -> $source {
                self.io.into_source()
            }
        }
    };
}

pub(super) use {peer_methods, socket_methods};
