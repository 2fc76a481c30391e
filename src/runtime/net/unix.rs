//! Unix domain stream sockets.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use socket2::SockAddr;

use super::bytes::{ReadBytes, WriteBytes};
use super::halves::{ReadHalf, WriteHalf};
use super::io::{First, Io, peer_methods, socket_methods};
use super::stream::{MAX_BUFFERS, sent, stream_methods};
use crate::reactor::receive_local;
use crate::runtime::driver::{Direction, note_received};

/// Accepts connections at a path.
#[derive(Debug)]
pub struct UnixListener {
    /// mio's listener, as in `TcpListener`.
    io: Io<mio::net::UnixListener>,
}

socket_methods!(UnixListener, SocketAddr);

impl UnixListener {
    /// Listens at `path`, which must not exist, and is not removed afterwards. (For an address without a path,
    /// make the socket with the standard library and pass it to `from_std`.)
    ///
    /// # Errors
    /// `AddrInUse` if the path exists; otherwise those of `bind(2)`.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        UnixListener::from_std(net::UnixListener::bind(path)?)
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Those of `accept(2)`. The listener continues.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let (stream, peer) = self.io.run(Direction::Read, |listener| listener.accept()).await?;
        let io = Io::new(net::UnixStream::from(OwnedFd::from(stream)), First::Try)?;
        Ok((UnixStream { io }, peer))
    }

    /// Puts a listening socket on the runtime of the current thread and makes it non-blocking.
    ///
    /// # Errors
    /// If there is no runtime, or if the socket cannot be registered.
    pub fn from_std(listener: net::UnixListener) -> io::Result<UnixListener> {
        listener.set_nonblocking(true)?;
        Ok(UnixListener { io: Io::new(mio::net::UnixListener::from_std(listener), First::Try)? })
    }
}

/// A connection between processes of one machine.
#[derive(Debug)]
pub struct UnixStream {
    io: Io<net::UnixStream>,
}

peer_methods!(UnixStream, net::UnixStream, SocketAddr);
stream_methods!(UnixStream, receive);

/// Buffers of at most this size are mostly filled by a read.
const SMALL: usize = 1024;

/// A short read means that no more is there, unless it stopped at a message with descriptors. Telling the two
/// apart costs a little. Where short reads are rare, this claims nothing, and the next read finds out.
fn receive(mut source: &net::UnixStream, buffers: &mut [IoSliceMut<'_>]) -> io::Result<(usize, bool)> {
    let room: usize = buffers.iter().map(|slice| slice.len()).sum();
    if let [buffer] = buffers
        && room <= SMALL
    {
        let got = source.read(buffer)?;
        note_received(got);
        return Ok((got, false));
    }
    let (got, cut) = receive_local(source.as_raw_fd(), buffers)?;
    note_received(got);
    Ok((got, got < room && got > 0 && !cut))
}

impl UnixStream {
    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// Those of `connect(2)`; `WouldBlock` if the listener's queue is full, because the system does not report
    /// when that ends.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        Ok(UnixStream { io: Io::connect(&SockAddr::unix(path)?).await? })
    }

    /// Creates two connected streams.
    ///
    /// # Errors
    /// Those of `socketpair(2)`; also if there is no runtime.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (a, b) = net::UnixStream::pair()?;
        Ok((UnixStream::from_std(a)?, UnixStream::from_std(b)?))
    }
}
