//! TCP.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{self, Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::bytes::{ReadBytes, WriteBytes};
use super::halves::{ReadHalf, WriteHalf};
use super::io::{First, Io, peer_methods, socket_methods};
use super::resolve::{Target, first_that};
use super::stream::{MAX_BUFFERS, sent, stream_methods};
use crate::runtime::driver::{Direction, note_received};
use crate::runtime::time::timeout;

/// How many connections the kernel keeps ready for `accept`.
const BACKLOG: i32 = 1024;

/// Accepts TCP connections.
#[derive(Debug)]
pub struct TcpListener {
    /// mio's listener: its `accept` returns a non-blocking socket without a second system call.
    io: Io<mio::net::TcpListener>,
}

socket_methods!(TcpListener, SocketAddr);

impl TcpListener {
    /// Listens at `target` (port 0: any free port), with SO_REUSEADDR.
    ///
    /// # Errors
    /// If the name does not resolve, or if the address is in use or not local.
    pub async fn bind(target: impl Into<Target>) -> io::Result<TcpListener> {
        let addresses = target.into().resolve().await?;
        first_that(addresses, async |address| {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            TcpListener::from_std(socket.into())
        })
        .await
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Those of `accept(2)`: a connection was reset in the queue, or no descriptors are left. The listener
    /// continues in either case. While there are no descriptors the error comes back at once, so sleep a while
    /// before the next call.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.accept_std().await?;
        Ok((TcpStream { io: Io::new(stream, First::Try)? }, peer))
    }

    /// As `accept`, but returns a non-blocking socket that is on no runtime yet.
    ///
    /// # Errors
    /// As `accept`.
    pub async fn accept_std(&self) -> io::Result<(net::TcpStream, SocketAddr)> {
        let (stream, peer) = self.io.run(Direction::Read, |listener| listener.accept()).await?;
        Ok((net::TcpStream::from(OwnedFd::from(stream)), peer))
    }

    /// Puts a listening socket on the runtime of the current thread and makes it non-blocking.
    ///
    /// # Errors
    /// If there is no runtime, or if the socket cannot be registered.
    pub fn from_std(listener: net::TcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(true)?;
        Ok(TcpListener { io: Io::new(mio::net::TcpListener::from_std(listener), First::Try)? })
    }

    /// Takes the socket off the runtime. It stays non-blocking.
    pub fn into_std(self) -> net::TcpListener {
        self.io.into_source().into()
    }
}

/// A TCP connection.
#[derive(Debug)]
pub struct TcpStream {
    io: Io<net::TcpStream>,
}

peer_methods!(TcpStream, net::TcpStream, SocketAddr);
stream_methods!(TcpStream, receive);

/// A short read means that no more is there.
fn receive(mut source: &net::TcpStream, buffers: &mut [IoSliceMut<'_>]) -> io::Result<(usize, bool)> {
    let room: usize = buffers.iter().map(|slice| slice.len()).sum();
    let got = match buffers {
        // A plain `recv` is a little less work for the kernel.
        [buffer] => source.read(buffer)?,
        _ => source.read_vectored(buffers)?,
    };
    note_received(got);
    Ok((got, got < room && got > 0))
}

impl TcpStream {
    /// Connects, trying the addresses of a name one after the other.
    ///
    /// # Errors
    /// If the name does not resolve; else the error of the last attempt.
    pub async fn connect(target: impl Into<Target>) -> io::Result<TcpStream> {
        let addresses = target.into().resolve().await?;
        first_that(addresses, async |address| Ok(TcpStream { io: Io::connect(&address.into()).await? })).await
    }

    /// As `connect`, with a limit for all attempts together.
    ///
    /// # Errors
    /// `TimedOut` when the limit is reached, else as `connect`.
    pub async fn connect_timeout(target: impl Into<Target>, limit: Duration) -> io::Result<TcpStream> {
        timeout(limit, TcpStream::connect(target)).await?
    }

    /// Runs `read`, which reads from the socket once, when there may be something to read. It also returns
    /// whether it exhausted the socket.
    pub(super) async fn receive<R>(
        &self,
        read: impl FnMut(&net::TcpStream) -> io::Result<(R, bool)>,
    ) -> io::Result<R> {
        self.io.run_until(Direction::Read, read).await
    }

    /// As `read`, but leaves the bytes there for the next read.
    ///
    /// # Errors
    /// As `read`.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.io.run(Direction::Read, |socket| socket.peek(buffer)).await
    }

    /// Sends small writes at once instead of collecting them (TCP_NODELAY).
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.io.source().set_nodelay(on)
    }

    /// Whether TCP_NODELAY is set.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.io.source().nodelay()
    }
}
