//! Socket addresses: the kernel's form, which is that of `socket2`, and Python's.
//!
//! Native code converts what only needs numbers copied: IP literals, paths, abstract names. Host names, scope names and
//! every other family are left to Python's socket module: the conversion gives `None`, and the caller asks the Python
//! socket instead.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use socket2::SockAddr;

use super::buffer::bytes_from;
use super::error::Raised;
use super::fallible::{Fallible, string, tuple};
use super::imports::imports;
use super::inspect::integer;
use super::object::{Borrowed, Ref};

/// Does the system have abstract names, which begin with a zero byte?
const HAS_ABSTRACT_NAMES: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// What a Python address means on a socket of `family`, if no name has to be looked up for it. It sets no error: the
/// caller asks Python's own socket, which says what is wrong with an address.
pub(crate) fn from_python(family: c_int, object: &Ref) -> Option<SockAddr> {
    if family == libc::AF_UNIX {
        return from_path(object);
    }
    let [host, port, more @ ..] = object.exact_tuple_items()? else { return None };
    let (host, port) = (host.exact_text()?, number_up_to(port, u16::MAX.into())? as u16);
    match family {
        libc::AF_INET if more.is_empty() => Some(SocketAddrV4::new(host.parse().ok()?, port).into()),
        libc::AF_INET6 if more.len() <= 2 => {
            let number = |index: usize, max| more.get(index).map_or(Some(0), |item| number_up_to(item, max));
            let (flow, scope) = (number(0, 0xf_ffff)?, number(1, u32::MAX)?);
            Some(SocketAddrV6::new(host.parse().ok()?, port, flow.to_be(), scope).into())
        }
        _ => None,
    }
}

/// An int of at most `max`.
fn number_up_to(object: &Ref, max: u32) -> Option<u32> {
    object.exact_int().and_then(|value| u32::try_from(value).ok()).filter(|value| *value <= max)
}

/// A path of plain ASCII, which needs no filesystem encoding, or an abstract name.
fn from_path(object: &Ref) -> Option<SockAddr> {
    let (name, may_be_abstract) = match object.exact_bytes() {
        Some(name) => (name, HAS_ABSTRACT_NAMES),
        None => (object.exact_text().filter(|name| name.is_ascii())?.as_bytes(), false),
    };
    let is_abstract = may_be_abstract && name.first() == Some(&0);
    if name.is_empty() || (name.contains(&0) && !is_abstract) {
        return None;
    }
    SockAddr::unix(OsStr::from_bytes(name)).ok()
}

/// The address as `socket.recvfrom()` shows it; `None` for a family that only Python knows, for a sender without a
/// name, and where the system reports no sender, as for a connected stream socket.
#[inline(always)]
pub(crate) fn to_python(address: &SockAddr) -> Result<Ref, Raised> {
    match address.as_socket() {
        Some(internet) => internet_to_python(&internet),
        None if address.is_unix() => path(address),
        None => Ok(Ref::none()),
    }
}

/// As [`to_python`], for an Internet address. Its flow information is in network byte order.
pub(crate) fn internet_to_python(address: &SocketAddr) -> Result<Ref, Raised> {
    let port = integer(address.port())?;
    match address {
        SocketAddr::V4(v4) => tuple([dotted(v4.ip())?, port]),
        SocketAddr::V6(v6) => {
            let flow = integer(u32::from_be(v6.flowinfo()))?;
            tuple([ipv6(v6.ip())?, port, flow, integer(v6.scope_id())?])
        }
    }
}

/// An IPv4 address as a str. It is written digit by digit, because this runs per datagram, and `write!` takes some
/// hundred instructions more.
fn dotted(ip: &Ipv4Addr) -> Result<Ref, Raised> {
    let mut text = [0_u8; 16];
    let mut length = 0;
    for octet in ip.octets() {
        for (least, digit) in [(100, octet / 100), (10, octet / 10 % 10), (0, octet % 10)] {
            if octet >= least {
                text[length] = b'0' + digit;
                length += 1;
            }
        }
        text[length] = b'.';
        length += 1;
    }
    // Without the last dot.
    text[length - 1] = 0;
    ascii(&text)
}

/// An IPv6 address as Python's `socket` writes it, which leaves that to the C library: Rust's own form differs for
/// addresses with an IPv4 one at the end.
fn ipv6(ip: &Ipv6Addr) -> Result<Ref, Raised> {
    unsafe extern "C" {
        fn inet_ntop(
            family: c_int,
            address: *const c_void,
            text: *mut c_char,
            size: libc::socklen_t,
        ) -> *const c_char;
    }
    let mut text = [0_u8; 46];
    // SAFETY: sixteen bytes of address, and room for the longest text with its zero.
    unsafe { inet_ntop(libc::AF_INET6, ip.octets().as_ptr().cast(), text.as_mut_ptr().cast(), 46) };
    ascii(&text)
}

/// A path as `str`, an abstract name as `bytes`.
fn path(address: &SockAddr) -> Result<Ref, Raised> {
    // SAFETY: the address is as long as it says.
    let bytes = unsafe { std::slice::from_raw_parts(address.as_ptr().cast::<u8>(), address.len() as usize) };
    let name = bytes.get(offset_of!(libc::sockaddr_un, sun_path)..).unwrap_or_default();
    if HAS_ABSTRACT_NAMES && name.first() == Some(&0) {
        return bytes_from(name);
    }
    let name = until_zero(name);
    // SAFETY: the data is copied; an owned reference or null with an error.
    unsafe {
        let size = name.len() as ffi::Py_ssize_t;
        Ref::from_owned(ffi::PyUnicode_DecodeFSDefaultAndSize(name.as_ptr().cast(), size))
    }
    .ok_or(Raised)
}

fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A str of ASCII text that ends with a zero.
fn ascii(text: &[u8]) -> Result<Ref, Raised> {
    string(std::str::from_utf8(until_zero(text)).unwrap_or_default())
}

/// `socket.family` as a number, without the enum that the Python property makes of it. `socket` must be a
/// `socket.socket`.
pub(crate) fn family(socket: &Ref) -> Result<i32, Raised> {
    number_of(socket, 0)
}

/// Is it a TCP socket as far as Python knows? `socket` must be a `socket.socket`.
pub(crate) fn is_tcp(socket: &Ref) -> Result<bool, Raised> {
    let internet = matches!(number_of(socket, 0)?, libc::AF_INET | libc::AF_INET6);
    Ok(internet && number_of(socket, 1)? == libc::SOCK_STREAM && number_of(socket, 2)? == libc::IPPROTO_TCP)
}

/// One of `family`, `type` and `proto`, by the member of the C class.
fn number_of(socket: &Ref, index: usize) -> Result<i32, Raised> {
    static MEMBERS: PyOnceLock<[Py<PyAny>; 3]> = PyOnceLock::new();
    let py = socket.py();
    let members = MEMBERS.get_or_try_init(py, || {
        let kind = py.import(Fallible("_socket"))?.getattr(Fallible("socket"))?;
        let member = |name: &str| kind.getattr(Fallible(name)).map(Bound::unbind);
        Ok::<_, PyErr>([member("family")?, member("type")?, member("proto")?])
    })?;
    let member = members[index].as_ptr();
    // SAFETY: a member descriptor of `_socket.socket`, called through its type's own slot; an owned reference or null
    // with an error.
    let value = unsafe {
        let Some(get) = (*ffi::Py_TYPE(member)).tp_descr_get else { return Ok(libc::AF_UNSPEC) };
        Ref::from_owned(get(member, socket.as_ptr(), socket.kind().cast()))
    };
    value.ok_or(Raised)?.to_index().map(|number| number as i32)
}

/// Is it exactly a `socket.socket`, not a subclass?
pub(crate) fn is_plain_socket(socket: *mut ffi::PyObject) -> bool {
    // SAFETY: a live object, which the caller borrows for the time of the call.
    unsafe { Borrowed::from_ptr(socket) }.is_exactly(&imports().socket)
}
