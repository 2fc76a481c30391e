//! Looks up names and addresses with the C library's `getaddrinfo`. The calls block. Any thread may make them.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ptr::{null, null_mut};

use socket2::SockAddr;

/// The parts of a request besides host and service. Zero means any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hints {
    pub(crate) family: i32,
    pub(crate) kind: i32,
    pub(crate) protocol: i32,
    pub(crate) flags: i32,
}

/// An error code of `getaddrinfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupError {
    code: i32,
    /// The errno behind `EAI_SYSTEM`.
    errno: i32,
}

impl LookupError {
    /// Makes the error. Call it right after the failed call, because it reads errno.
    pub(crate) fn last(code: i32) -> LookupError {
        LookupError { code, errno: io::Error::last_os_error().raw_os_error().unwrap_or(0) }
    }

    /// Returns the code, one of the `EAI_` constants.
    pub fn code(&self) -> i32 {
        self.code
    }
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: `gai_strerror` returns a static C string.
        let text = unsafe { CStr::from_ptr(libc::gai_strerror(self.code)) };
        f.write_str(&text.to_string_lossy())
    }
}

impl std::error::Error for LookupError {}

impl From<LookupError> for io::Error {
    fn from(error: LookupError) -> io::Error {
        match error.code {
            libc::EAI_SYSTEM => io::Error::from_raw_os_error(error.errno),
            libc::EAI_NONAME => io::Error::new(io::ErrorKind::NotFound, error),
            _ => io::Error::other(error),
        }
    }
}

/// The list that `getaddrinfo` returned.
#[derive(Debug)]
pub(crate) struct Addresses(*mut libc::addrinfo);

// SAFETY: the list is plain memory with one owner.
unsafe impl Send for Addresses {}

impl Drop for Addresses {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the list is from `getaddrinfo`, and is freed once.
            unsafe { libc::freeaddrinfo(self.0) }
        }
    }
}

impl Addresses {
    /// The entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &libc::addrinfo> {
        // SAFETY: null or an entry of the list, which lives as long as this.
        let entry = |entry: *const libc::addrinfo| unsafe { entry.as_ref() };
        std::iter::successors(entry(self.0), move |it| entry(it.ai_next))
    }
}

/// Calls `getaddrinfo`.
///
/// # Errors
/// The error of the C library.
pub(crate) fn look_up(
    host: Option<&CStr>,
    service: Option<&CStr>,
    hints: Hints,
) -> Result<Addresses, LookupError> {
    let mut list = null_mut();
    // SAFETY: zeroed hints are valid, the strings outlive the call, and `list` is valid for a write.
    let code = unsafe {
        let mut raw: libc::addrinfo = std::mem::zeroed();
        (raw.ai_family, raw.ai_socktype) = (hints.family, hints.kind);
        (raw.ai_protocol, raw.ai_flags) = (hints.protocol, hints.flags);
        let text = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
        libc::getaddrinfo(text(host), text(service), &raw, &mut list)
    };
    if code == 0 { Ok(Addresses(list)) } else { Err(LookupError::last(code)) }
}

/// Returns the IPv4 and IPv6 addresses of a host, with this port.
///
/// # Errors
/// `InvalidInput` for a name with a zero byte. Otherwise the error of the lookup, which wraps a
/// [`LookupError`].
pub(crate) fn addresses_of(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = CString::new(host)?;
    // Without a socket type, `getaddrinfo` would list each address once per type.
    let hints = Hints { kind: libc::SOCK_STREAM, ..Hints::default() };
    let found = look_up(Some(&host), None, hints)?;
    let internet = |entry| {
        let mut address = address(entry).ok()?.as_socket()?;
        address.set_port(port);
        Some(address)
    };
    Ok(found.iter().filter_map(internet).collect())
}

/// The address of an entry. It is cut if it is longer than any socket address.
pub(crate) fn address(entry: &libc::addrinfo) -> io::Result<SockAddr> {
    // SAFETY: the entry's address is as long as the entry says, and no more is copied than the storage has room for.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, len| {
            *len = entry.ai_addrlen.min(*len);
            std::ptr::copy_nonoverlapping(entry.ai_addr.cast::<u8>(), storage.cast::<u8>(), *len as usize);
            Ok(())
        })
    }?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_literal_needs_no_lookup() {
        for (host, address) in [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80")] {
            assert_eq!(addresses_of(host, 80).unwrap(), [address.parse().unwrap()]);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot call getaddrinfo")]
    fn an_unknown_name_fails_with_the_code_of_the_c_library() {
        let error = addresses_of("no such name", 80).unwrap_err();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<LookupError>()).unwrap();
        assert_eq!(inner.code(), libc::EAI_NONAME);
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(addresses_of("zero\0byte", 80).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
