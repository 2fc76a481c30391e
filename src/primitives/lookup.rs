//! `loop.getaddrinfo` without an executor.
//!
//! A request that needs no lookup (literals, numbers) is answered at once, by the C library's own `getaddrinfo`, so
//! that order and content are as the socket module would give them. Any other request runs on the blocking pool
//! without the GIL: the arguments are converted to C before, and the results to Python afterwards.
//!
//! Only arguments of plain types are served here. For the others the functions return `None`; then asyncio's own
//! coroutine is called, which also raises every error about a wrong argument.

use std::ffi::{CStr, CString};
use std::net::{Ipv4Addr, Ipv6Addr};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::bridge::io_error::raise_io;
use crate::bridge::pool;
use crate::capi::audit;
use crate::capi::error::exception;
use crate::capi::fallible::{list, py_tuple};
use crate::capi::inspect::boolean;
use crate::capi::methods::Method;
use crate::capi::sockaddr;
use crate::capi::{Arguments, Borrowed, Fallible, Ref, This};
use crate::kernel::core::Core;
use crate::kernel::core::inbox::Lookup;
use crate::resolver::{self, Addresses, Hints, LookupError};

/// A label of a host name is shorter than this. For a longer one, Python's codec raises the error.
const LABEL_END: usize = 64;
/// With other flags than these, even a literal may be looked up.
const NUMERIC_FLAGS: i32 = libc::AI_PASSIVE
    | libc::AI_NUMERICHOST
    | libc::AI_NUMERICSERV
    | libc::AI_ADDRCONFIG
    | libc::AI_V4MAPPED
    | libc::AI_ALL;

/// The arguments of a `getaddrinfo` call.
struct Question {
    host: Option<CString>,
    service: Option<CString>,
    hints: Hints,
    /// The call asks no name service.
    numeric: bool,
}

impl Question {
    /// From (host, port, family, type, proto, flags). `None` if Python has to check the values.
    fn from_python(values: [Borrowed<'_>; 6]) -> Option<Question> {
        let (host, literal) = host(&values[0])?;
        let (service, number) = service(&values[1])?;
        let [family, kind, protocol, flags] =
            [values[2], values[3], values[4], values[5]].map(|value| small_int(&value));
        let (family, kind, protocol, flags) = (family?, kind?, protocol?, flags?);
        let numeric = number
            && (literal || host.is_none() || flags & libc::AI_NUMERICHOST != 0)
            && flags & !NUMERIC_FLAGS == 0;
        Some(Question { host, service, hints: Hints { family, kind, protocol, flags }, numeric })
    }

    fn ask(&self) -> Result<Addresses, LookupError> {
        let service = self.service.as_deref();
        #[cfg(target_vendor = "apple")]
        // As Python does it: the system takes a plain 0 for no service at all.
        let service =
            if self.hints.flags & libc::AI_NUMERICSERV != 0 && service.is_none_or(|name| name == c"0") {
                Some(c"00")
            } else {
                service
            };
        resolver::look_up(self.host.as_deref(), service, self.hints)
    }
}

/// The list of tuples that `socket.getaddrinfo()` makes of it.
fn to_python<'py>(py: Python<'py>, addresses: &Addresses) -> PyResult<Bound<'py, PyList>> {
    let list = list(py, [])?;
    for entry in addresses.iter() {
        let address = sockaddr::to_python(&resolver::address(entry)?)?;
        let name = if entry.ai_canonname.is_null() {
            Fallible("").into_pyobject(py)?
        } else {
            // SAFETY: a C string of the entry.
            PyString::from_bytes(py, unsafe { CStr::from_ptr(entry.ai_canonname) }.to_bytes())?
        };
        let [family, kind] = members(py, [entry.ai_family, entry.ai_socktype])?;
        let protocol = Fallible(entry.ai_protocol).into_pyobject(py)?.into_any();
        list.append(py_tuple(py, [family, kind, protocol, name.into_any(), address.bind(py).clone()])?)?;
    }
    Ok(list)
}

/// Family and type as members of their enums, or as numbers if they are not members.
fn members(py: Python<'_>, numbers: [i32; 2]) -> PyResult<[Bound<'_, PyAny>; 2]> {
    static MAPS: PyOnceLock<[Py<PyDict>; 2]> = PyOnceLock::new();
    let maps = MAPS.get_or_try_init(py, || {
        let socket = py.import(Fallible("socket"))?;
        let map = |name: &str| -> PyResult<Py<PyDict>> {
            Ok(socket.getattr(Fallible(name))?.getattr(Fallible("_value2member_map_"))?.cast_into()?.unbind())
        };
        PyResult::Ok([map("AddressFamily")?, map("SocketKind")?])
    })?;
    let member = |index: usize| -> PyResult<Bound<'_, PyAny>> {
        let number = Fallible(numbers[index]).into_pyobject(py)?.into_any();
        Ok(maps[index].bind(py).get_item(&number)?.unwrap_or(number))
    };
    Ok([member(0)?, member(1)?])
}

/// A host for C, and whether it is an address already. `None` if Python has to check or encode it.
fn host(object: &Ref) -> Option<(Option<CString>, bool)> {
    if object.is_none() {
        return Some((None, false));
    }
    if let Some(bytes) = object.exact_bytes() {
        let literal = std::str::from_utf8(bytes).is_ok_and(is_literal);
        return Some((Some(CString::new(bytes).ok()?), literal));
    }
    let text = object.exact_text().filter(|text| text.is_ascii())?;
    let literal = is_literal(text);
    if !literal && !is_plain_name(text) {
        return None;
    }
    Some((Some(CString::new(text).ok()?), literal))
}

/// A host name from the user, encoded as asyncio encodes it.
///
/// # Errors
/// Raises ValueError for a zero byte, and UnicodeError for a text that cannot be a host name.
pub(super) fn host_name(host: &Bound<'_, PyString>) -> PyResult<String> {
    let text = host.to_str()?;
    if text.contains('\0') {
        return Err(exception::<PyValueError>("host name must not contain null character"));
    }
    if text.is_ascii() && (text.is_empty() || is_literal(text) || is_plain_name(text)) {
        return Ok(text.to_owned());
    }
    let encoded = host.call_method1(Fallible("encode"), (Fallible("idna"),))?;
    Ok(String::from_utf8_lossy(encoded.cast::<PyBytes>()?.as_bytes()).into_owned())
}

/// Whether the text is an address in one of the strict forms. An IPv6 address may have a zone.
fn is_literal(text: &str) -> bool {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    text.parse::<Ipv4Addr>().is_ok() || address.parse::<Ipv6Addr>().is_ok()
}

/// Whether Python's codec for host names leaves this ASCII text as it is.
fn is_plain_name(text: &str) -> bool {
    let (labels, last) = text.rsplit_once('.').map_or((None, text), |(labels, last)| (Some(labels), last));
    last.len() < LABEL_END
        && labels
            .is_none_or(|labels| labels.split('.').all(|label| !label.is_empty() && label.len() < LABEL_END))
}

/// A service for C, and whether it is absent or a number.
fn service(object: &Ref) -> Option<(Option<CString>, bool)> {
    if object.is_none() {
        return Some((None, true));
    }
    if object.is_exact_int() {
        let number = u16::try_from(small_int(object)?).ok()?;
        return Some((Some(CString::new(number.to_string()).ok()?), true));
    }
    let text = object.exact_text()?;
    let number = text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    Some((Some(CString::new(text).ok()?), number))
}

/// An int, or a member of an enum of ints, in the range of C's.
fn small_int(object: &Ref) -> Option<i32> {
    i32::try_from(object.saturating_int()?).ok()
}

/// `_look_up(host, port, family, type, proto, flags, may_wait)`: the list of addresses, or if `may_wait()` a future of
/// it. `None` means that asyncio's own code has to answer.
fn look_up(this: This<'_, Core>, arguments: Arguments<'_>) -> PyResult<Option<Ref>> {
    let parameters = ["host", "port", "family", "type", "proto", "flags", "may_wait"];
    let ([host, port, family, kind, protocol, flags, may_wait], []) =
        arguments.bind("_look_up", parameters, [])?;
    let Some(question) = Question::from_python([host, port, family, kind, protocol, flags]) else {
        return Ok(None);
    };
    if !question.numeric && !may_wait.call(&[])?.is(&boolean(true)) {
        return Ok(None);
    }
    let Hints { family, kind, protocol, .. } = question.hints;
    audit::looks_up([&host, &port], [family, kind, protocol])?;
    if question.numeric {
        return match question.ask() {
            Ok(addresses) => Ok(Some(Ref::from(to_python(this.py(), &addresses)?.into_any()))),
            Err(failure) => Err(raise_io(&failure.into()).into()),
        };
    }
    let lookup = Lookup::of(&this.inbox);
    let future = pool::run(&this.object().bind(this.py()), move || {
        let answer = question.ask();
        Box::new(move |py| {
            drop(lookup);
            match answer {
                Ok(addresses) => Ok(to_python(py, &addresses)?.into_any().unbind()),
                Err(failure) => Err(raise_io(&failure.into()).into()),
            }
        })
    })?;
    Ok(Some(Ref::from(future)))
}

/// The methods that are added to the loop class.
pub(crate) const METHODS: &[Method<Core>] = &[Method::fast(
    c"_look_up",
    look_up,
    c"_look_up(host, port, family, type, proto, flags, may_wait)\n\nAddresses, a future of them, or None.",
)];
