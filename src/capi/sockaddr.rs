//! Socket addresses: the kernel's form and Python's.
//!
//! Native code converts what only needs numbers copied: IP literals, paths, abstract names. Host names, scope names and
//! every other family are left to Python's socket module: the conversion gives `None`, and the caller asks the Python
//! socket instead.
//!
//! The public functions take a borrowed object, which lives for the time of the call.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::buffer::bytes_from;
use super::error::Raised;
use super::fallible::{Fallible, tuple};
use super::imports::imports;
use super::inspect::integer;
use super::object::{Borrowed, Ref};

/// Where the path begins in a `sockaddr_un`.
const PATH: usize = offset_of!(libc::sockaddr_un, sun_path);
/// The longest path or abstract name.
const PATH_MAX: usize = size_of::<libc::sockaddr_un>() - PATH;

/// `getsockname` or `getpeername`.
pub(crate) type Ask = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// The kernel's form of an address.
///
/// # Safety
/// It is made of plain numbers, so that any bytes are a valid one.
unsafe trait Family: Copy {}
// SAFETY: plain numbers and arrays of them.
unsafe impl Family for libc::sockaddr_storage {}
// SAFETY: as above.
unsafe impl Family for libc::sockaddr_in {}
// SAFETY: as above.
unsafe impl Family for libc::sockaddr_in6 {}
// SAFETY: as above.
unsafe impl Family for libc::sockaddr_un {}

/// All zero: no family. The fields beside the address differ between systems.
#[inline(always)]
fn zeroed<T: Family>() -> T {
    // SAFETY: plain numbers.
    unsafe { std::mem::zeroed() }
}

/// A socket address of any family, with its true length.
#[derive(Clone, Copy)]
pub(crate) struct SockAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl SockAddr {
    /// Room for the kernel to write an address into.
    #[inline(always)]
    pub(crate) fn room() -> SockAddr {
        SockAddr { storage: zeroed(), len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    /// What `getsockname` or `getpeername` says.
    pub(crate) fn asked(fd: RawFd, ask: Ask) -> Option<SockAddr> {
        let mut found = SockAddr::room();
        let (address, length) = found.places();
        // SAFETY: the places of a live address.
        (unsafe { ask(fd, address, length) } == 0).then_some(found)
    }

    /// A copy of somebody's address.
    ///
    /// # Safety
    /// `address` points to `len` bytes.
    pub(crate) unsafe fn copied(address: *const libc::sockaddr, len: libc::socklen_t) -> SockAddr {
        let mut copy = SockAddr::room();
        copy.len = len.min(copy.len);
        // SAFETY: the caller's word, and no more than the storage has room for.
        unsafe {
            std::ptr::copy_nonoverlapping(
                address.cast::<u8>(),
                (&raw mut copy.storage).cast::<u8>(),
                copy.len as usize,
            );
        }
        copy
    }

    /// The address that the kernel wrote to `storage`, of which it said the length.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn written(storage: libc::sockaddr_storage, len: libc::socklen_t) -> SockAddr {
        SockAddr { storage, len }
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn len(&self) -> libc::socklen_t {
        self.len
    }

    /// The two places that `recvfrom` and its kin fill.
    pub(crate) fn places(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        ((&raw mut self.storage).cast(), &raw mut self.len)
    }

    /// The bytes that make up the address.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        let len = (self.len as usize).min(size_of::<libc::sockaddr_storage>());
        // SAFETY: the storage is initialised as a whole, and `len` is not beyond it.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), len) }
    }

    /// An Internet address; its flow is in the order of the network.
    pub(crate) fn internet(address: &SocketAddr) -> SockAddr {
        match address {
            SocketAddr::V4(v4) => {
                let mut raw: libc::sockaddr_in = zeroed();
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                SockAddr::from_parts(raw, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                let mut raw: libc::sockaddr_in6 = zeroed();
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = v6.port().to_be();
                raw.sin6_flowinfo = v6.flowinfo();
                raw.sin6_addr.s6_addr = v6.ip().octets();
                raw.sin6_scope_id = v6.scope_id();
                SockAddr::from_parts(raw, size_of::<libc::sockaddr_in6>())
            }
        }
    }

    /// Copies the parts of an address of one family into a fresh storage.
    fn from_parts<T: Family>(raw: T, len: usize) -> SockAddr {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        let mut address = SockAddr::room();
        // SAFETY: the storage is larger than every family's address and aligned for all of them.
        unsafe { (&raw mut address.storage).cast::<T>().write(raw) };
        address.len = len as libc::socklen_t;
        address
    }

    /// The parts of an address of one family.
    #[inline(always)]
    fn parts<T: Family>(&self) -> T {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        // SAFETY: the storage is initialised, larger than every family's address and aligned for all of them, whose parts
        // are plain numbers.
        unsafe { self.as_ptr().cast::<T>().read() }
    }

    /// What a Python address means on a socket of `family`, if no name has to be looked up for it. Sets no
    /// error: what is wrong with an address, Python's own socket says best.
    pub(crate) fn from_python(family: i32, object: &Ref) -> Option<SockAddr> {
        match family {
            libc::AF_INET => from_pair(object),
            libc::AF_INET6 => from_quadruple(object),
            libc::AF_UNIX => from_path(object),
            _ => None,
        }
    }

    /// The address as `socket.recvfrom()` shows it; `Ok(None)` for a family that only Python knows.
    #[inline(always)]
    pub(crate) fn as_python(&self) -> Result<Option<Ref>, Raised> {
        if self.len == 0 {
            // The sender has no name, or the socket has one peer only.
            return Ok(Some(Ref::none()));
        }
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                let raw: libc::sockaddr_in = self.parts();
                let host = dotted(Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr)))?;
                tuple([host, integer(u16::from_be(raw.sin_port))?]).map(Some)
            }
            libc::AF_INET6 => {
                let raw: libc::sockaddr_in6 = self.parts();
                let host = string(Ipv6Text::of(&raw.sin6_addr.s6_addr).as_bytes())?;
                tuple([
                    host,
                    integer(u16::from_be(raw.sin6_port))?,
                    integer(u32::from_be(raw.sin6_flowinfo))?,
                    integer(raw.sin6_scope_id)?,
                ])
                .map(Some)
            }
            libc::AF_UNIX => self.path().map(Some),
            _ => Ok(None),
        }
    }

    /// A path as `str`, an abstract name as `bytes`.
    fn path(&self) -> Result<Ref, Raised> {
        let name = self.as_bytes().get(PATH..).unwrap_or_default();
        if cfg!(any(target_os = "linux", target_os = "android")) && name.first() == Some(&0) {
            return bytes_from(name);
        }
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        // SAFETY: the data is copied; an owned reference or null with an error.
        unsafe {
            Ref::from_owned(ffi::PyUnicode_DecodeFSDefaultAndSize(
                name.as_ptr().cast(),
                end as ffi::Py_ssize_t,
            ))
        }
        .ok_or(Raised)
    }
}

impl std::fmt::Debug for SockAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SockAddr(family {}, {} bytes)", self.storage.ss_family, self.len)
    }
}

/// `socket.family` as a number, without the enum that the Python property makes of it. `socket` must be a
/// `socket.socket`.
pub(crate) fn family(socket: *mut ffi::PyObject) -> Result<i32, Raised> {
    number_of(socket, 0)
}

/// Is it a TCP socket as far as Python knows? `socket` must be a `socket.socket`.
pub(crate) fn is_tcp(socket: *mut ffi::PyObject) -> Result<bool, Raised> {
    let internet = matches!(number_of(socket, 0)?, libc::AF_INET | libc::AF_INET6);
    Ok(internet && number_of(socket, 1)? == libc::SOCK_STREAM && number_of(socket, 2)? == libc::IPPROTO_TCP)
}

/// One of `family`, `type` and `proto`, by the member of the C class.
fn number_of(socket: *mut ffi::PyObject, index: usize) -> Result<i32, Raised> {
    static MEMBERS: PyOnceLock<[Py<PyAny>; 3]> = PyOnceLock::new();
    // SAFETY: a live object, by the contract of this file's public functions.
    let socket = unsafe { Borrowed::from_ptr(socket) };
    let py = socket.py();
    let members = MEMBERS.get_or_try_init(py, || {
        let kind = py.import(Fallible("_socket"))?.getattr(Fallible("socket"))?;
        let member = |name: &str| kind.getattr(Fallible(name)).map(Bound::unbind);
        Ok::<_, PyErr>([member("family")?, member("type")?, member("proto")?])
    })?;
    let member = members[index].as_ptr();
    // SAFETY: a member descriptor of `_socket.socket`, asked through its type's own slot; an owned reference or null with
    // an error.
    let value = unsafe {
        let Some(get) = (*ffi::Py_TYPE(member)).tp_descr_get else { return Ok(libc::AF_UNSPEC) };
        Ref::from_owned(get(member, socket.as_ptr(), socket.kind().cast()))
    };
    value.ok_or(Raised)?.to_index().map(|number| number as i32)
}

/// Is it a `socket.socket` itself, no subclass and no imitation?
pub(crate) fn is_plain_socket(socket: *mut ffi::PyObject) -> bool {
    // SAFETY: a live object, by the contract of this file's public functions.
    unsafe { Borrowed::from_ptr(socket) }.is_exactly(&imports().socket)
}

/// An int of at most `max`.
fn number_up_to(object: &Ref, max: u32) -> Option<u32> {
    object.exact_int().and_then(|value| u32::try_from(value).ok()).filter(|value| *value <= max)
}

fn from_pair(object: &Ref) -> Option<SockAddr> {
    let [host, port] = object.exact_tuple_items()? else { return None };
    let ip = host.exact_text()?.parse().ok()?;
    let port = number_up_to(port, u16::MAX.into())? as u16;
    Some(SockAddr::internet(&SocketAddrV4::new(ip, port).into()))
}

fn from_quadruple(object: &Ref) -> Option<SockAddr> {
    let [host, port, more @ ..] = object.exact_tuple_items()? else { return None };
    if more.len() > 2 {
        return None;
    }
    let ip = host.exact_text()?.parse().ok()?;
    let port = number_up_to(port, u16::MAX.into())? as u16;
    let number = |index: usize, max| more.get(index).map_or(Some(0), |item| number_up_to(item, max));
    let (flow, scope) = (number(0, 0xf_ffff)?, number(1, u32::MAX)?);
    Some(SockAddr::internet(&SocketAddrV6::new(ip, port, flow.to_be(), scope).into()))
}

/// A path of plain ASCII, which needs no filesystem encoding, or on Linux an abstract name.
fn from_path(object: &Ref) -> Option<SockAddr> {
    let (name, end) = match object.exact_bytes() {
        Some(name) => {
            let abstract_name = cfg!(any(target_os = "linux", target_os = "android"));
            (name, usize::from(name.first() != Some(&0) || !abstract_name))
        }
        None => (object.exact_text().filter(|name| name.is_ascii())?.as_bytes(), 1),
    };
    if name.is_empty() || name.len() + end > PATH_MAX || (end == 1 && name.contains(&0)) {
        return None;
    }
    let mut raw: libc::sockaddr_un = zeroed();
    raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in raw.sun_path.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    Some(SockAddr::from_parts(raw, PATH + name.len() + end))
}

/// An IPv4 address as a str. By hand: this runs per datagram, and the formatting machinery costs as much as
/// everything else in the tuple.
fn dotted(ip: Ipv4Addr) -> Result<Ref, Raised> {
    let mut text = [0_u8; 15];
    let mut length = 0;
    let mut put = |byte| {
        text[length] = byte;
        length += 1;
    };
    for (index, octet) in ip.octets().into_iter().enumerate() {
        if index > 0 {
            put(b'.');
        }
        if octet >= 100 {
            put(b'0' + octet / 100);
        }
        if octet >= 10 {
            put(b'0' + octet / 10 % 10);
        }
        put(b'0' + octet % 10);
    }
    string(&text[..length])
}

/// An IPv6 address as Python's `socket` writes it, which leaves that to the C library: Rust's own form differs for
/// addresses with an IPv4 one at the end.
pub(crate) struct Ipv6Text([u8; 46]);

impl Ipv6Text {
    pub(crate) fn of(octets: &[u8; 16]) -> Ipv6Text {
        unsafe extern "C" {
            fn inet_ntop(
                family: c_int,
                address: *const c_void,
                text: *mut c_char,
                size: libc::socklen_t,
            ) -> *const c_char;
        }
        let mut text = [0; 46];
        // SAFETY: sixteen bytes of address, and room for the longest text with its zero.
        unsafe { inet_ntop(libc::AF_INET6, octets.as_ptr().cast(), text.as_mut_ptr().cast(), 46) };
        Ipv6Text(text)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// A str of ASCII bytes.
fn string(value: &[u8]) -> Result<Ref, Raised> {
    // SAFETY: the data is copied; an owned reference or null with an error.
    unsafe {
        let size = value.len() as ffi::Py_ssize_t;
        Ref::from_owned(ffi::PyUnicode_FromStringAndSize(value.as_ptr().cast(), size))
    }
    .ok_or(Raised)
}
