//! Sockets by their descriptor: a Python socket for a descriptor that a native object owns, and system calls.

use std::ffi::c_int;
use std::fs::read_to_string;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::OnceLock;

use pyo3::prelude::*;
use socket2::{SockAddr, SockAddrStorage, SockRef, Socket};

use super::fallible::Fallible;
use super::imports::support;
use super::object::Ref;

/// How data is sent: without waiting, and without a signal if the peer is gone.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) const SEND_FLAGS: c_int = libc::MSG_DONTWAIT;

/// Makes a Python socket with the descriptor of a native object. The native object must detach the socket before it
/// closes the descriptor. `proto` is the protocol number that the socket shows; if it is negative, the system is asked.
/// Returns `None` if the socket is no longer `wanted` once it is made: Python code has run, so another thread may have
/// made one too, or closed the object.
pub(crate) fn adopt(
    py: Python<'_>,
    fd: RawFd,
    proto: c_int,
    wanted: impl FnOnce() -> bool,
) -> PyResult<Option<Ref>> {
    let socket = support(py, "adopt_socket")?.call1((Fallible(fd), Fallible(proto)))?;
    if wanted() {
        return Ok(Some(Ref::from(socket)));
    }
    socket.call_method0(Fallible("detach"))?;
    Ok(None)
}

/// Makes one system call on a socket that the caller does not own.
pub(crate) fn with_socket<T>(fd: RawFd, call: impl FnOnce(&Socket) -> io::Result<T>) -> io::Result<T> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is used for the time of the call only. A descriptor that is closed makes the call fail.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    call(&SockRef::from(&fd))
}

/// Has a TCP socket surely room for `size` more bytes in its send buffer? False if that is not known. Half of the room
/// is left for what the kernel adds to each packet. With small packets that was up to 0.37 of the room.
#[cold]
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn has_room(fd: RawFd, size: usize) -> bool {
    let mut info = [0_u32; 9];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the system writes at most `length` bytes to `info`.
    let failed = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, info.as_mut_ptr().cast(), &mut length)
    };
    let queued = info[libc::SK_MEMINFO_WMEM_QUEUED as usize];
    let room = info[libc::SK_MEMINFO_SNDBUF as usize].saturating_sub(queued);
    failed == 0 && room as usize / 2 >= size && !limits_unsent(fd)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn has_room(_fd: RawFd, _size: usize) -> bool {
    false
}

/// Does a limit of unsent data apply, so that the socket may refuse data while it has room? True if that is not known.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn limits_unsent(fd: RawFd) -> bool {
    static UNLIMITED: OnceLock<bool> = OnceLock::new();
    let system = || {
        read_to_string("/proc/sys/net/ipv4/tcp_notsent_lowat").is_ok_and(|text| text.trim() == "4294967295")
    };
    // 0: the socket has no limit of its own, so the system's applies.
    !matches!(with_socket(fd, Socket::tcp_notsent_lowat), Ok(0)) || !UNLIMITED.get_or_init(system)
}

/// One `recvfrom` without waiting: what it returns, and who sent the data.
///
/// # Safety
/// `place` has room for `size` bytes.
#[inline(always)]
pub(crate) unsafe fn receive_from(fd: RawFd, place: *mut u8, size: usize) -> (isize, SockAddr) {
    let mut storage = SockAddrStorage::zeroed();
    let mut length = storage.size_of();
    // SAFETY: the caller's contract; the system writes an address to the storage, and its length beside it.
    unsafe {
        let sender = storage.view_as::<libc::sockaddr>();
        let count = libc::recvfrom(fd, place.cast(), size, libc::MSG_DONTWAIT, sender, &mut length);
        (count, SockAddr::new(storage, length))
    }
}

#[cfg(test)]
#[cfg(any(target_os = "linux", target_os = "android"))]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// A connection with small packets, whose receiver has a small window: it needs the most memory for each byte.
    fn connected(segment: u32) -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        SockRef::from(&listener).set_recv_buffer_size(4096)?;
        let sender = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        sender.set_tcp_mss(segment)?;
        sender.set_send_buffer_size(200_000)?;
        sender.connect(&listener.local_addr()?.into())?;
        sender.set_nonblocking(true)?;
        Ok((sender.into(), listener.accept()?.0))
    }

    #[test]
    fn a_socket_that_has_room_takes_so_many_bytes() -> io::Result<()> {
        let data = [0; 150_000];
        for segment in [88, 536, 1400, 32_000] {
            for piece in [1000, 10_000, data.len()] {
                let (mut sender, _receiver) = connected(segment)?;
                let mut rounds = 0;
                while has_room(sender.as_raw_fd(), data.len()) {
                    data.chunks(piece).try_for_each(|chunk| io::Write::write_all(&mut sender, chunk))?;
                    rounds += 1;
                }
                assert!(rounds > 0 || limits_unsent(sender.as_raw_fd()));
            }
        }
        Ok(())
    }

    #[test]
    fn a_socket_that_may_refuse_data_has_no_room() -> io::Result<()> {
        let (sender, _receiver) = connected(1400)?;
        SockRef::from(&sender).set_tcp_notsent_lowat(100_000)?;
        assert!(!has_room(sender.as_raw_fd(), 1));
        let (one, _other) = Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        assert!(!has_room(one.as_raw_fd(), 1));
        assert!(!has_room(-1, 1));
        Ok(())
    }
}
