//! The methods of a stream that make awaitable calls. They run per message, so they are fast functions.

use std::ffi::CStr;

use pyo3::ffi;

use super::call::{Action, TcpStreamCall};
use super::data::Data;
use crate::capi::call::guard;
use crate::capi::error::raise_message;
use crate::capi::types::Method;
use crate::capi::{Args, Raised, Ref};
use crate::runtime::net::Want;

/// The longest frame, unless the user says otherwise.
pub(super) const MAX_FRAME: usize = 16 * 1024 * 1024;

/// A borrowed argument.
type Object = *mut ffi::PyObject;

/// Binds the arguments of a method and makes its call.
///
/// # Safety
/// `stream` is a TcpStream, the rest are the arguments of the running call.
unsafe fn stream_call<const N: usize>(
    stream: *mut ffi::PyObject,
    (values, count, names): (*const *mut ffi::PyObject, ffi::Py_ssize_t, *mut ffi::PyObject),
    (name, function, parameters, required): (&'static str, &str, [&str; N], usize),
    make: impl FnOnce([*mut ffi::PyObject; N]) -> Result<Action, Raised>,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the caller's word.
        let arguments = unsafe { Args::new(values, count, names) };
        let action = arguments.bind(function, parameters, required).and_then(make);
        // SAFETY: the caller's word.
        let call = action.and_then(|action| unsafe { TcpStreamCall::create(stream, name, action) });
        call.map_or(std::ptr::null_mut(), Ref::into_ptr)
    })
}

macro_rules! stream_method {
    ($name:ident($($parameter:ident),*), $required:literal, $make:expr) => {
        unsafe extern "C" fn $name(
            stream: *mut ffi::PyObject,
            values: *const *mut ffi::PyObject,
            count: ffi::Py_ssize_t,
            names: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            let (name, function) = (concat!("TcpStream.", stringify!($name)), stringify!($name));
            let signature = (name, function, [$(stringify!($parameter)),*], $required);
            let make = $make;
            // SAFETY: the method sits on TcpStream; the arguments are those of this call.
            unsafe { stream_call(stream, (values, count, names), signature, make) }
        }
    };
}

fn reads(want: Want) -> Result<Action, Raised> {
    Ok(Action::Read { want, next: false })
}

/// A size in bytes; `None` for null and for a negative one.
fn size(object: *mut ffi::PyObject) -> Result<Option<usize>, Raised> {
    if object.is_null() {
        return Ok(None);
    }
    // SAFETY: a live object; -1 with an error set means failure.
    let size = unsafe { ffi::PyNumber_AsSsize_t(object, ffi::PyExc_OverflowError) };
    // SAFETY: asks for the indicator only.
    if size == -1 && !unsafe { ffi::PyErr_Occurred() }.is_null() {
        return Err(Raised);
    }
    Ok(usize::try_from(size).ok())
}

fn value_error(text: &str) -> Raised {
    // SAFETY: reading a static of the interpreter.
    raise_message(unsafe { ffi::PyExc_ValueError }, text);
    Raised
}

stream_method!(read(n), 0, |[n]: [Object; 1]| {
    reads(match size(n)? {
        None => Want::All,
        // Nothing is read, and nothing waited for.
        Some(0) => Want::Exact(0),
        Some(n) => Want::Some(n),
    })
});
stream_method!(read_exactly(n), 1, |[n]: [Object; 1]| match size(n)? {
    Some(n) => reads(Want::Exact(n)),
    None => Err(value_error("read_exactly size can not be less than zero")),
});
stream_method!(readline(), 0, |[]: [Object; 0]| reads(Want::Line));
stream_method!(read_until(separator), 0, |[separator]: [Object; 1]| {
    if separator.is_null() {
        return reads(Want::Line);
    }
    let separator = Data::from_python(separator)?;
    match separator.rest() {
        [] => Err(value_error("Separator should be at least one-byte string")),
        bytes => reads(Want::Until(bytes.into())),
    }
});
stream_method!(read_frame(max_size), 0, |[most]: [Object; 1]| {
    match size(most)? {
        Some(most) => reads(Want::Frame(most)),
        None if most.is_null() => reads(Want::Frame(MAX_FRAME)),
        None => Err(value_error("max_size can not be less than zero")),
    }
});
stream_method!(write_all(data), 1, |[data]: [Object; 1]| Data::from_python(data).map(Action::Write));
stream_method!(writelines(list_of_data), 1, |[list]: [Object; 1]| {
    // SAFETY: a live object; an iterator or null with an error.
    let iterator = unsafe { Ref::from_owned(ffi::PyObject_GetIter(list)) }.ok_or(Raised)?;
    let mut joined = Vec::new();
    // SAFETY: an iterator; each item is owned.
    while let Some(item) = unsafe { Ref::from_owned(ffi::PyIter_Next(iterator.as_ptr())) } {
        joined.extend_from_slice(Data::from_python(item.as_ptr())?.rest());
    }
    // SAFETY: asks for the indicator only.
    if unsafe { ffi::PyErr_Occurred() }.is_null() { Ok(Action::Write(joined.into())) } else { Err(Raised) }
});
stream_method!(write_frame(data), 1, |[data]: [Object; 1]| {
    let data = Data::from_python(data)?;
    let Ok(len) = u32::try_from(data.rest().len()) else {
        return Err(value_error("a frame holds less than 4 GiB"));
    };
    Ok(Action::Write([&len.to_be_bytes(), data.rest()].concat().into()))
});

const fn method(
    name: &'static CStr,
    function: crate::capi::types::FastFunction,
    doc: &'static CStr,
) -> Method {
    Method::Fast(name, function, doc)
}

/// What is put on the class.
pub(crate) const METHODS: &[Method] = &[
    method(
        c"read",
        read,
        c"read(n=-1)\n\nRead at least one and at most n bytes; all up to the end of the stream if n is negative. Empty bytes mean the end. Awaitable.",
    ),
    method(
        c"read_exactly",
        read_exactly,
        c"read_exactly(n)\n\nRead n bytes. Raises asyncio.IncompleteReadError, with what there was, if the stream ends before. Awaitable.",
    ),
    method(
        c"read_until",
        read_until,
        c"read_until(separator=b'\\n')\n\nRead up to the separator, which is included. Raises asyncio.IncompleteReadError if the stream ends before, and asyncio.LimitOverrunError if the separator is not within the stream's limit; the bytes then stay and can be read otherwise. Awaitable.",
    ),
    method(
        c"readline",
        readline,
        c"readline()\n\nRead a line with its end. The last one may have none; empty bytes mean the end of the stream. Raises asyncio.LimitOverrunError for a line that is longer than the stream's limit; the bytes then stay. Awaitable.",
    ),
    method(
        c"read_frame",
        read_frame,
        c"read_frame(max_size=16777216)\n\nRead a frame: its length as four bytes, big-endian and unsigned, then so many bytes, which are returned. Raises asyncio.IncompleteReadError if the stream ends before, with partial=b'' if it ends between frames, and asyncio.LimitOverrunError if the frame is longer than max_size. Awaitable.",
    ),
    method(
        c"write_all",
        write_all,
        c"write_all(data)\n\nSend all of data, which is any bytes-like object; done when the system has taken all of it. Several tasks may write: each one's data stays in one piece. Raises BrokenPipeError or ConnectionResetError if the peer is gone. Awaitable.",
    ),
    method(
        c"writelines",
        writelines,
        c"writelines(list_of_data)\n\nSend several bytes-like objects, as one write_all. Awaitable.",
    ),
    method(
        c"write_frame",
        write_frame,
        c"write_frame(data)\n\nSend data as a frame that read_frame reads. Awaitable.",
    ),
];
