//! Socket addresses: the kernel's form and Python's.
//!
//! Native code converts what is a matter of copying numbers: IP literals, paths, abstract names. Host
//! names, scope names and every other family are the socket module's business; a conversion that would
//! need it says `None`, and the caller asks the Python socket instead.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::error::{Raised, restore};
use super::fallible::{Fallible, tuple};
use super::imports::imports;
use super::inspect::integer;
use super::object::Ref;

/// Where the path begins in a `sockaddr_un`.
const PATH: usize = offset_of!(libc::sockaddr_un, sun_path);
/// The longest path or abstract name.
const PATH_MAX: usize = size_of::<libc::sockaddr_un>() - PATH;

/// `getsockname` or `getpeername`.
pub(crate) type Ask = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

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
        SockAddr {
            // SAFETY: all-zero is a valid storage: family "unspecified".
            storage: unsafe { std::mem::zeroed() },
            len: size_of::<libc::sockaddr_storage>() as libc::socklen_t,
        }
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
                // SAFETY: all-zero is a valid address; the fields differ between systems.
                let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                SockAddr::from_parts(raw, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                // SAFETY: as above.
                let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
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
    fn from_parts<T: Copy>(raw: T, len: usize) -> SockAddr {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        let mut address = SockAddr::room();
        // SAFETY: the storage is larger than every family's address and aligned for all of them.
        unsafe { (&raw mut address.storage).cast::<T>().write(raw) };
        address.len = len as libc::socklen_t;
        address
    }

    /// What a Python address means on a socket of `family`, if no name has to be looked up for it. Sets no
    /// error: what is wrong with an address, Python's own socket says best.
    pub(crate) fn from_python(family: i32, object: *mut ffi::PyObject) -> Option<SockAddr> {
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
                // SAFETY: the family says what the storage holds.
                let raw = unsafe { &*self.as_ptr().cast::<libc::sockaddr_in>() };
                let host = dotted(Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr)))?;
                tuple([host, integer(u16::from_be(raw.sin_port))?]).map(Some)
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let raw = unsafe { &*self.as_ptr().cast::<libc::sockaddr_in6>() };
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
        let object = if cfg!(any(target_os = "linux", target_os = "android")) && name.first() == Some(&0) {
            // SAFETY: the data is copied; an owned reference or null with an error.
            unsafe { ffi::PyBytes_FromStringAndSize(name.as_ptr().cast(), name.len() as ffi::Py_ssize_t) }
        } else {
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            // SAFETY: as above.
            unsafe { ffi::PyUnicode_DecodeFSDefaultAndSize(name.as_ptr().cast(), end as ffi::Py_ssize_t) }
        };
        // SAFETY: an owned reference or null with an error.
        unsafe { Ref::from_owned(object) }.ok_or(Raised)
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
    // SAFETY: every caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    let members = MEMBERS
        .get_or_try_init(py, || {
            let kind = py.import(Fallible("_socket"))?.getattr(Fallible("socket"))?;
            let member = |name: &str| kind.getattr(Fallible(name)).map(Bound::unbind);
            Ok([member("family")?, member("type")?, member("proto")?])
        })
        .map_err(|error: PyErr| restore(py, error))?;
    let member = &members[index];
    // SAFETY: a member descriptor of `_socket.socket`, asked through its type's own slot; the result is an
    // owned int or null with an error.
    unsafe {
        let kind = ffi::Py_TYPE(member.as_ptr());
        let Some(get) = (*kind).tp_descr_get else { return Ok(libc::AF_UNSPEC) };
        let value = Ref::from_owned(get(member.as_ptr(), socket, ffi::Py_TYPE(socket).cast()));
        let number = ffi::PyLong_AsLong(value.ok_or(Raised)?.as_ptr());
        if number == -1 && !ffi::PyErr_Occurred().is_null() { Err(Raised) } else { Ok(number as i32) }
    }
}

/// Is it a `socket.socket` itself, no subclass and no imitation?
pub(crate) fn is_plain_socket(socket: *mut ffi::PyObject) -> bool {
    // SAFETY: a live object.
    unsafe { ffi::Py_TYPE(socket).cast::<ffi::PyObject>() == imports().socket.as_ptr() }
}

/// The items of an exact tuple.
fn items(object: *mut ffi::PyObject) -> Option<(*mut ffi::PyObject, usize)> {
    // SAFETY: a live object; the size is read of a tuple only.
    unsafe {
        (ffi::PyTuple_CheckExact(object) != 0).then(|| (object, ffi::PyTuple_GET_SIZE(object) as usize))
    }
}

/// Item `index` of a tuple, as a `str` without surrogates.
fn host_at<'a>(tuple: *mut ffi::PyObject, index: usize) -> Option<&'a str> {
    // SAFETY: the caller has looked at the size; the tuple keeps the item alive through the call.
    str_of(unsafe { ffi::PyTuple_GET_ITEM(tuple, index as ffi::Py_ssize_t) })
}

/// The content of an exact `str` without surrogates.
pub(crate) fn str_of<'a>(object: *mut ffi::PyObject) -> Option<&'a str> {
    let mut size = 0;
    // SAFETY: a live object; the UTF-8 form is cached in the str and lives as long as it does, which every
    // caller limits to its own call. A str that has no such form sets an error, which is cleared.
    unsafe {
        if ffi::PyUnicode_CheckExact(object) == 0 {
            return None;
        }
        let data = ffi::PyUnicode_AsUTF8AndSize(object, &mut size);
        if data.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(std::str::from_utf8_unchecked(std::slice::from_raw_parts(data.cast::<u8>(), size as usize)))
    }
}

/// Item `index` of a tuple, as an int of at most `max`.
fn number_at(tuple: *mut ffi::PyObject, index: usize, max: u32) -> Option<u32> {
    // SAFETY: the caller has looked at the size; an int that is too large sets an error, which is cleared.
    let value = unsafe {
        let item = ffi::PyTuple_GET_ITEM(tuple, index as ffi::Py_ssize_t);
        if ffi::PyLong_CheckExact(item) == 0 {
            return None;
        }
        let value = ffi::PyLong_AsLong(item);
        if value == -1 {
            ffi::PyErr_Clear();
        }
        value
    };
    u32::try_from(value).ok().filter(|value| *value <= max)
}

fn from_pair(object: *mut ffi::PyObject) -> Option<SockAddr> {
    let (tuple, 2) = items(object)? else { return None };
    let ip = host_at(tuple, 0)?.parse().ok()?;
    let port = number_at(tuple, 1, u16::MAX.into())? as u16;
    Some(SockAddr::internet(&SocketAddrV4::new(ip, port).into()))
}

fn from_quadruple(object: *mut ffi::PyObject) -> Option<SockAddr> {
    let (tuple, size @ 2..=4) = items(object)? else { return None };
    let ip = host_at(tuple, 0)?.parse().ok()?;
    let port = number_at(tuple, 1, u16::MAX.into())? as u16;
    let flow = if size > 2 { number_at(tuple, 2, 0xf_ffff)? } else { 0 };
    let scope = if size > 3 { number_at(tuple, 3, u32::MAX)? } else { 0 };
    Some(SockAddr::internet(&SocketAddrV6::new(ip, port, flow.to_be(), scope).into()))
}

/// A path of plain ASCII, which needs no filesystem encoding, or on Linux an abstract name.
fn from_path(object: *mut ffi::PyObject) -> Option<SockAddr> {
    // SAFETY: a live object.
    let is_bytes = unsafe { ffi::PyBytes_CheckExact(object) } != 0;
    let (name, end) = if is_bytes {
        // SAFETY: bytes that the caller keeps alive through the call.
        let name = unsafe { super::buffer::bytes_slice(object) };
        let abstract_name = cfg!(any(target_os = "linux", target_os = "android"));
        (name, usize::from(name.first() != Some(&0) || !abstract_name))
    } else {
        (str_of(object).filter(|name| name.is_ascii())?.as_bytes(), 1)
    };
    if name.is_empty() || name.len() + end > PATH_MAX || (end == 1 && name.contains(&0)) {
        return None;
    }
    // SAFETY: all-zero is a valid address.
    let mut raw: libc::sockaddr_un = unsafe { std::mem::zeroed() };
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
        Ref::from_owned(ffi::PyUnicode_FromStringAndSize(
            value.as_ptr().cast(),
            value.len() as ffi::Py_ssize_t,
        ))
    }
    .ok_or(Raised)
}
