//! Unix domain datagram sockets.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;

use super::io::{First, Io};
use crate::runtime::driver::Direction;

/// A datagram socket between processes of one machine. Datagrams keep their order and are not lost: a full receiver
/// makes a connected sender wait. (`send_to` without a connection waits as well, but the system does not tell when
/// there is room again: connect first where the receiver may be slow.)
#[derive(Debug)]
pub struct UnixDatagram {
    io: Io<net::UnixDatagram>,
}

impl UnixDatagram {
    /// Binds to `path`, which must not exist and is not removed afterwards.
    ///
    /// # Errors
    /// `AddrInUse` if the path exists; what `bind(2)` says.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        UnixDatagram::from_std(net::UnixDatagram::bind(path)?)
    }

    /// A socket without a name: it can send, and receive what a pair or a connection gives it.
    ///
    /// # Errors
    /// What `socket(2)` says, and without a runtime.
    pub fn unbound() -> io::Result<UnixDatagram> {
        UnixDatagram::from_std(net::UnixDatagram::unbound()?)
    }

    /// Two connected sockets.
    ///
    /// # Errors
    /// What `socketpair(2)` says, and without a runtime.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (a, b) = net::UnixDatagram::pair()?;
        Ok((UnixDatagram::from_std(a)?, UnixDatagram::from_std(b)?))
    }

    /// Makes `path` the default destination and drops what others send.
    ///
    /// # Errors
    /// What `connect(2)` says.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.io.source().connect(path)
    }

    /// Sends one datagram to the socket at `path`; its length.
    ///
    /// # Errors
    /// What `sendto(2)` says; one that is too long is an error, never cut.
    pub async fn send_to(&self, data: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let path = path.as_ref();
        self.io.run(Direction::Write, |socket| socket.send_to(data, path)).await
    }

    /// Receives one datagram: its length and sender. What does not fit into `buffer` is lost.
    ///
    /// # Errors
    /// What `recvfrom(2)` says.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.io.run(Direction::Read, |socket| socket.recv_from(buffer)).await
    }

    /// As `send_to`, to the connected peer.
    ///
    /// # Errors
    /// As `send_to`.
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.io.run(Direction::Write, |socket| socket.send(data)).await
    }

    /// As `recv_from`, from the connected peer.
    ///
    /// # Errors
    /// As `recv_from`.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.io.run(Direction::Read, |socket| socket.recv(buffer)).await
    }

    /// Our address.
    ///
    /// # Errors
    /// What `getsockname(2)` says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.source().local_addr()
    }

    /// Puts a socket on the runtime of the current thread and makes it non-blocking.
    ///
    /// # Errors
    /// Without a runtime, and when the socket cannot be registered.
    pub fn from_std(socket: net::UnixDatagram) -> io::Result<UnixDatagram> {
        socket.set_nonblocking(true)?;
        Ok(UnixDatagram { io: Io::new(socket, First::Try)? })
    }

    /// Takes the socket off the runtime. It stays non-blocking.
    pub fn into_std(self) -> net::UnixDatagram {
        self.io.into_source()
    }
}

impl AsRawFd for UnixDatagram {
    fn as_raw_fd(&self) -> RawFd {
        self.io.source().as_raw_fd()
    }
}
