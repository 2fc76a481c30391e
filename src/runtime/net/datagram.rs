//! Unix domain datagram sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;

use super::io::{First, Io};
use super::packets::datagram_methods;
use crate::runtime::driver::Direction;

/// A datagram socket between processes of one machine. Datagrams keep their order and are not lost: a full receiver
/// makes a connected sender wait. (`send_to` without a connection waits as well, but the system does not tell when
/// there is room again: connect first where the receiver may be slow.)
#[derive(Debug)]
pub struct UnixDatagram {
    io: Io<net::UnixDatagram>,
}

datagram_methods!(UnixDatagram, net::UnixDatagram, SocketAddr);

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

    /// As `send_to`, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; else as `send_to`.
    pub fn try_send_to(&self, data: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.io.try_run(Direction::Write, |socket| socket.send_to(data, path))
    }
}
