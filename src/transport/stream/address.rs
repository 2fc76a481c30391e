//! System calls on stream sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

use pyo3::prelude::*;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::capi::sockaddr::internet_to_python;
use crate::capi::socket::with_socket;

/// An IPv4 address, or an IPv6 address without a scope. For other addresses Python's socket is used, because it returns
/// a scope by its name.
fn without_scope(address: &SockAddr) -> Option<SocketAddr> {
    address.as_socket().filter(|address| match address {
        SocketAddr::V4(_) => true,
        SocketAddr::V6(v6) => v6.scope_id() == 0,
    })
}

/// The tuple that `socket.getpeername()` returns for this address.
pub(crate) fn to_python<'py>(py: Python<'py>, address: &SocketAddr) -> PyResult<Bound<'py, PyAny>> {
    Ok(internet_to_python(address)?.bind(py))
}

/// The socket's own address, if it is an IPv4 address or an IPv6 address without a scope.
pub(super) fn own_address(fd: RawFd) -> Option<SocketAddr> {
    without_scope(&with_socket(fd, Socket::local_addr).ok()?)
}

/// The peer's address, if it is an IPv4 address or an IPv6 address without a scope.
pub(crate) fn peer_address(fd: RawFd) -> Option<SocketAddr> {
    without_scope(&with_socket(fd, Socket::peer_addr).ok()?)
}

/// Opens a TCP socket, non-blocking and close-on-exec.
pub(crate) fn open_stream(family: libc::c_int) -> io::Result<RawFd> {
    let kind = Type::STREAM;
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    let kind = kind.nonblocking();
    let socket = Socket::new(Domain::from(family), kind, Some(Protocol::TCP))?;
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    socket.set_nonblocking(true)?;
    Ok(socket.into_raw_fd())
}

/// Sets TCP_NODELAY, as asyncio does for every TCP connection.
pub(crate) fn set_nodelay(fd: RawFd) -> io::Result<()> {
    with_socket(fd, |socket| socket.set_tcp_nodelay(true))
}

/// Returns and clears the socket's pending error (`SO_ERROR`), or 0.
pub(crate) fn pending_error(fd: RawFd) -> libc::c_int {
    let error = with_socket(fd, Socket::take_error).unwrap_or_else(Some);
    error.map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// Accepts one connection, non-blocking and close-on-exec, with its peer's address.
pub(super) fn accept(listener: RawFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    // SAFETY: the system call writes an address and its length, as `try_init` requires. The descriptor is new, so no
    // other code owns it.
    let (fd, peer) = unsafe {
        SockAddr::try_init(|storage, length| {
            #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
            let fd =
                libc::accept4(listener, storage.cast(), length, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
            #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
            let fd = libc::accept(listener, storage.cast(), length);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
        })
    }?;
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    with_socket(std::os::fd::AsRawFd::as_raw_fd(&fd), |socket| {
        socket.set_nonblocking(true).and_then(|()| socket.set_cloexec(true))
    })?;
    Ok((fd, without_scope(&peer)))
}
