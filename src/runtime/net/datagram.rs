//! Unix domain datagram sockets.

use std::io;
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;

use super::io::{First, Io, peer_methods};
use super::packets::datagram_methods;
use crate::runtime::driver::{Direction, note_received};

/// A datagram socket between processes of one machine. Datagrams keep their order and are not lost: a full
/// receiver makes a connected sender wait. (`send_to` without a connection waits as well, but the system does
/// not report when there is room again. Connect first if the receiver may be slow.)
#[derive(Debug)]
pub struct UnixDatagram {
    io: Io<net::UnixDatagram>,
}

peer_methods!(UnixDatagram, net::UnixDatagram, SocketAddr);
datagram_methods!(UnixDatagram, SocketAddr);

impl UnixDatagram {
    /// Binds to `path`, which must not exist and is not removed afterwards.
    ///
    /// # Errors
    /// `AddrInUse` if the path exists; otherwise those of `bind(2)`.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        UnixDatagram::from_std(net::UnixDatagram::bind(path)?)
    }

    /// Creates a socket without a name: it can send, and it can receive over a pair or a connection.
    ///
    /// # Errors
    /// Those of `socket(2)`; also if there is no runtime.
    pub fn unbound() -> io::Result<UnixDatagram> {
        UnixDatagram::from_std(net::UnixDatagram::unbound()?)
    }

    /// Creates two connected sockets.
    ///
    /// # Errors
    /// Those of `socketpair(2)`; also if there is no runtime.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (a, b) = net::UnixDatagram::pair()?;
        Ok((UnixDatagram::from_std(a)?, UnixDatagram::from_std(b)?))
    }

    /// Makes `path` the default destination. Datagrams from other senders are dropped from then on.
    ///
    /// # Errors
    /// Those of `connect(2)`.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.io.source().connect(path)
    }

    /// Sends one datagram to the socket at `path`, and returns its length.
    ///
    /// # Errors
    /// Those of `sendto(2)`. A datagram that is too long is an error; it is never truncated.
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
