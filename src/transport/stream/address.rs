//! Socket addresses as Python shows them.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;

use pyo3::prelude::*;

use crate::capi::Fallible;
use crate::capi::fallible::py_tuple;
use crate::capi::sockaddr::Ipv6Text;

/// The Internet address in a raw socket address; `None` for other families and for addresses with a zone.
pub(crate) fn internet(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a sockaddr_in, and the storage is large enough.
            let raw = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for sockaddr_in6.
            let raw = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            if raw.sin6_scope_id != 0 {
                // Python shows the zone by its name.
                return None;
            }
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The tuple that `socket.getpeername()` gives for an Internet address.
pub(crate) fn to_python<'py>(py: Python<'py>, address: &SocketAddr) -> PyResult<Bound<'py, PyAny>> {
    let port = Fallible(address.port()).into_pyobject(py)?.into_any();
    let parts = match address {
        SocketAddr::V4(v4) => {
            let host = Fallible(v4.ip().to_string()).into_pyobject(py)?.into_any();
            py_tuple(py, [host, port])?
        }
        SocketAddr::V6(v6) => {
            let text = Ipv6Text::of(&v6.ip().octets());
            let host = std::str::from_utf8(text.as_bytes()).unwrap_or_default();
            let host = Fallible(host).into_pyobject(py)?.into_any();
            let flow = Fallible(u32::from_be(v6.flowinfo())).into_pyobject(py)?.into_any();
            let zone = Fallible(v6.scope_id()).into_pyobject(py)?.into_any();
            py_tuple(py, [host, port, flow, zone])?
        }
    };
    Ok(parts.into_any())
}

/// What `getsockname` or `getpeername` says, if it is an Internet address without a zone; the rest is for
/// the Python socket.
pub(crate) fn name_of(
    fd: RawFd,
    ask: unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int,
) -> Option<SocketAddr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut size = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: one of the two functions, a place for the address and its true size; zeroed, so initialised
    // whatever was written.
    let storage = unsafe {
        if ask(fd, storage.as_mut_ptr().cast(), &mut size) < 0 {
            return None;
        }
        storage.assume_init()
    };
    internet(&storage)
}

/// A stream socket, non-blocking and closed on exec.
pub(crate) fn open_stream(family: libc::c_int) -> std::io::Result<RawFd> {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    // SAFETY: makes a descriptor.
    let fd = unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        libc::socket(family, kind, libc::IPPROTO_TCP)
    };
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    // SAFETY: makes a descriptor.
    let fd = unsafe { not_inherited(libc::socket(family, libc::SOCK_STREAM, libc::IPPROTO_TCP)) };
    if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(fd) }
}

/// Makes a fresh descriptor non-blocking and closed on exec, where the system has no call that does both at once.
///
/// # Safety
/// Nobody else knows the descriptor, unless it is -1.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
unsafe fn not_inherited(fd: RawFd) -> RawFd {
    if fd >= 0 {
        // SAFETY: flags of an open descriptor.
        unsafe {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
        }
    }
    fd
}

/// Small segments leave at once, as asyncio wants it for every TCP connection.
pub(crate) fn set_nodelay(fd: RawFd) -> std::io::Result<()> {
    let on: libc::c_int = 1;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: an option with a value of its size.
    let done =
        unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const on).cast(), size) };
    if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes the error that a socket has met, or 0.
pub(crate) fn pending_error(fd: RawFd) -> libc::c_int {
    let mut error: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: a place of the right size.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &mut size) };
    if done < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { error }
}

/// Accepts one connection, non-blocking and closed on exec, with its peer's address.
pub(crate) fn accept(listener: RawFd) -> std::io::Result<(RawFd, libc::sockaddr_storage)> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut size = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    // SAFETY: a place for the address and its true size.
    let fd = unsafe {
        libc::accept4(
            listener,
            storage.as_mut_ptr().cast(),
            &mut size,
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    };
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    // SAFETY: as above.
    let fd = unsafe { not_inherited(libc::accept(listener, storage.as_mut_ptr().cast(), &mut size)) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: zeroed above, so initialised whatever the kernel wrote; a family of 0 is no Internet address.
    Ok((fd, unsafe { storage.assume_init() }))
}
