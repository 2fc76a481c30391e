//! UDP.

use std::cell::RefCell;
use std::io;
use std::net::{self, SocketAddr};

use super::io::{First, Io, peer_methods};
use super::packets::datagram_methods;
use super::resolve::Target;
use crate::runtime::driver::{Direction, note_received};

/// The length of the longest datagram.
const LONGEST: usize = 64 * 1024;

/// A datagram socket.
#[derive(Debug)]
pub struct UdpSocket {
    io: Io<net::UdpSocket>,
}

peer_methods!(UdpSocket, net::UdpSocket, SocketAddr);
datagram_methods!(UdpSocket, SocketAddr);

impl UdpSocket {
    /// Binds to `target` (port 0: any free port).
    ///
    /// # Errors
    /// If the name does not resolve, or if the address is in use or not local.
    pub async fn bind(target: impl Into<Target>) -> io::Result<UdpSocket> {
        let addresses = target.into().resolve().await?;
        UdpSocket::from_std(net::UdpSocket::bind(&*addresses)?)
    }

    /// Makes `target` the default destination. Datagrams from other senders are dropped from then on. It waits
    /// only to resolve a name.
    ///
    /// # Errors
    /// As `bind`.
    pub async fn connect(&self, target: impl Into<Target>) -> io::Result<()> {
        let addresses = target.into().resolve().await?;
        self.io.source().connect(&*addresses)
    }

    /// Sends one datagram, and returns its length.
    ///
    /// # Errors
    /// Those of `sendto(2)`. A datagram that is too long is an error; it is never truncated.
    pub async fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.io.run(Direction::Write, |socket| socket.send_to(data, to)).await
    }

    /// As `send_to`, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; else as `send_to`.
    pub fn try_send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.io.try_run(Direction::Write, |socket| socket.send_to(data, to))
    }

    /// Receives one datagram of any length, and returns its content and sender.
    ///
    /// # Errors
    /// As `recv_from`.
    pub async fn receive(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        thread_local! {
            static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let read = |socket: &net::UdpSocket| {
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.resize(LONGEST, 0);
                let (len, sender) = socket.recv_from(scratch)?;
                note_received(len);
                Ok((scratch[..len].to_vec(), sender))
            })
        };
        self.io.run(Direction::Read, read).await
    }
}
