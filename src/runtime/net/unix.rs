//! Unix domain stream sockets.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use socket2::SockAddr;

use super::bytes::{ReadBytes, WriteBytes};
use super::halves::{ReadHalf, WriteHalf};
use super::io::{First, Io};
use super::stream::{MAX_BUFFERS, stream_methods};
use crate::reactor::receive_local;
use crate::runtime::driver::Direction;

/// Accepts connections at a path.
#[derive(Debug)]
pub struct UnixListener {
    /// mio's, as in `TcpListener`.
    io: Io<mio::net::UnixListener>,
}

impl UnixListener {
    /// Listens at `path`, which must not exist and is not removed afterwards. (For an address without a path, make the
    /// socket with the standard library and pass it to `from_std`.)
    ///
    /// # Errors
    /// `AddrInUse` if the path exists; what `bind(2)` says.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        UnixListener::from_std(net::UnixListener::bind(path)?)
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// What `accept(2)` says; the listener goes on.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let (stream, peer) = self.io.run(Direction::Read, |listener| listener.accept()).await?;
        let io = Io::new(net::UnixStream::from(OwnedFd::from(stream)), First::Try)?;
        Ok((UnixStream { io }, peer))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What `getsockname(2)` says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.source().local_addr()
    }

    /// Puts a listening socket on the runtime of the current thread and makes it non-blocking.
    ///
    /// # Errors
    /// Without a runtime, and when the socket cannot be registered.
    pub fn from_std(listener: net::UnixListener) -> io::Result<UnixListener> {
        listener.set_nonblocking(true)?;
        Ok(UnixListener { io: Io::new(mio::net::UnixListener::from_std(listener), First::Try)? })
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.source().as_fd()
    }
}

impl AsRawFd for UnixListener {
    fn as_raw_fd(&self) -> RawFd {
        self.io.source().as_raw_fd()
    }
}

/// A connection between processes of one machine.
#[derive(Debug)]
pub struct UnixStream {
    io: Io<net::UnixStream>,
}

stream_methods!(UnixStream, net::UnixStream, receive);

/// A buffer of at most this size is mostly filled: by what it was made for, or by a part of what there is.
const SMALL: usize = 1024;

/// A short read means that no more is there, unless it ended at a descriptor. To tell the two apart costs a little; where
/// short reads are rare it is left open, and the next read finds out.
fn receive(mut source: &net::UnixStream, buffers: &mut [IoSliceMut<'_>]) -> io::Result<(usize, bool)> {
    let room: usize = buffers.iter().map(|slice| slice.len()).sum();
    if let [buffer] = buffers
        && room <= SMALL
    {
        return Ok((source.read(buffer)?, false));
    }
    let (got, cut) = receive_local(source.as_raw_fd(), buffers)?;
    Ok((got, got < room && got > 0 && !cut))
}

impl UnixStream {
    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// What `connect(2)` says; `WouldBlock` if the listener's queue is full, as the system does not tell when that is over.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        Ok(UnixStream { io: Io::connect(&SockAddr::unix(path)?).await? })
    }

    /// Two connected streams.
    ///
    /// # Errors
    /// What `socketpair(2)` says, and without a runtime.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (a, b) = net::UnixStream::pair()?;
        Ok((UnixStream::from_std(a)?, UnixStream::from_std(b)?))
    }

    /// Our end.
    ///
    /// # Errors
    /// What `getsockname(2)` says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.source().local_addr()
    }

    /// The other end.
    ///
    /// # Errors
    /// `NotConnected` if the peer is gone already.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.io.source().peer_addr()
    }
}
