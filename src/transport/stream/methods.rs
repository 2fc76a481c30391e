//! The stream transport as Python sees it: one table of methods, one of attributes.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::send;
use super::transport::{Stream, stream_of};
use crate::capi::call::guard;
use crate::capi::error::{raise_message, restore};
use crate::capi::types::{Attribute, Method};
use crate::capi::{Args, Fatal, Raised, Ref};
use crate::compat::transports::patchable;
use crate::event_loop::futures::new_future;
use crate::transport::base::protocol_sink::Delivery;
use crate::transport::tls;

/// A method's frame: the transport held for the time of the call, and `None` or null as the result.
fn with(
    object: *mut ffi::PyObject,
    body: impl FnOnce(&Ref, &Stream) -> Result<(), Raised>,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the tables below belong to the stream transport; the caller holds a reference.
        let (held, stream) = unsafe { (Ref::from_borrowed(object), stream_of(object)) };
        match body(&held, stream) {
            Ok(()) => Ref::none().into_ptr(),
            Err(Raised) => null_mut(),
        }
    })
}

/// A closed loop takes no step that a live connection would need: RuntimeError, as asyncio's.
fn check_loop(stream: &Stream) -> Result<(), Raised> {
    if stream.conn_lost.get() > 0 { Ok(()) } else { stream.core().check_usable() }
}

/// The fields of the receiver, for a method that runs no other code.
fn fields<'a>(object: *mut ffi::PyObject) -> &'a Stream {
    // SAFETY: as in `with`.
    unsafe { stream_of(object) }
}

pub(crate) fn truth(value: bool) -> *mut ffi::PyObject {
    // SAFETY: making a bool cannot fail.
    unsafe { ffi::PyBool_FromLong(value.into()) }
}

/// An error of a pyo3 call as a set indicator.
fn python<T>(result: PyResult<T>) -> Result<T, Raised> {
    // SAFETY: the methods of this file run with the GIL held.
    result.map_err(|error| restore(unsafe { Python::assume_attached() }, error))
}

unsafe extern "C" fn write(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, stream| {
        // SAFETY: the arguments of this call.
        let data = unsafe { Args::new(values, count, names) }.one("write", "data")?;
        send::write(held, stream, data)
    })
}

unsafe extern "C" fn writelines(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, stream| {
        // SAFETY: the arguments of this call.
        let list = unsafe { Args::new(values, count, names) }.one("writelines", "list_of_data")?;
        // SAFETY: a borrowed argument.
        let list = unsafe { Ref::from_borrowed(list) };
        send::writelines(held, stream, &list)
    })
}

unsafe extern "C" fn write_eof(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, send::write_eof)
}

unsafe extern "C" fn can_write_eof(_object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    truth(true)
}

/// What was written through the TLS connection on this transport goes out before an end that goes past that connection,
/// as of a server that ends its clients: on asyncio it was sent when it was written.
fn send_encrypted(stream: &Stream) {
    if stream.receiver.delivery() == Delivery::Tls
        && let Some(connection) = stream.receiver.protocol.get()
    {
        tls::write::send_last_of(&connection);
    }
}

unsafe extern "C" fn close(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, stream| {
        send_encrypted(stream);
        send::close(held, stream).map_err(|Fatal| Raised)
    })
}

unsafe extern "C" fn abort(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, stream| {
        check_loop(stream)?;
        send_encrypted(stream);
        send::abort(held, stream)
    })
}

unsafe extern "C" fn force_close(
    object: *mut ffi::PyObject,
    error: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, stream| {
        check_loop(stream)?;
        // SAFETY: a borrowed argument.
        stream.force_close(held, Some(unsafe { Ref::from_borrowed(error) }));
        Ok(())
    })
}

unsafe extern "C" fn is_closing(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    truth(fields(object).closing.get())
}

unsafe extern "C" fn is_reading(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    truth(fields(object).is_reading())
}

unsafe extern "C" fn pause_reading(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, stream| {
        if !stream.is_reading() {
            return Ok(());
        }
        stream.paused.set(true);
        stream.settle();
        debug_line(held, stream, "paused_reading")
    })
}

unsafe extern "C" fn resume_reading(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, stream| {
        if stream.closing.get() || !stream.paused.get() {
            return Ok(());
        }
        check_loop(stream)?;
        stream.paused.set(false);
        stream.settle();
        stream.resume();
        debug_line(held, stream, "resumed_reading")
    })
}

fn debug_line(object: &Ref, stream: &Stream, function: &str) -> Result<(), Raised> {
    let core = stream.core();
    if !core.is_debug() {
        return Ok(());
    }
    core.support(function, &[object.as_ptr()]).map_err(|Fatal| Raised)
}

unsafe extern "C" fn set_protocol(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |_, stream| {
        // SAFETY: the arguments of this call.
        let protocol = unsafe { Args::new(values, count, names) }.one("set_protocol", "protocol")?;
        // SAFETY: a borrowed argument.
        stream.receiver.set(unsafe { Ref::from_borrowed(protocol) })
    })
}

unsafe extern "C" fn get_protocol(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    fields(object).receiver.protocol.get_or_none()
}

unsafe extern "C" fn get_extra_info(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the arguments of this call; the caller holds the transport and the GIL.
        let (stream, arguments, py) =
            unsafe { (stream_of(object), Args::new(values, count, names), Python::assume_attached()) };
        let Ok([name, default]) = arguments.bind("get_extra_info", ["name", "default"], 1) else {
            return null_mut();
        };
        // SAFETY: borrowed arguments.
        let (name, default) = unsafe { (Bound::from_borrowed_ptr(py, name), Ref::from_nullable(default)) };
        match python(stream.extra_info(py, &name)) {
            Ok(Some(value)) => value.into_ptr(),
            Ok(None) => default.unwrap_or_else(Ref::none).into_ptr(),
            Err(Raised) => null_mut(),
        }
    })
}

unsafe extern "C" fn get_write_buffer_size(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: as in `with`.
        let held = unsafe { Ref::from_borrowed(object) };
        match send::buffer_size(&held, fields(object)) {
            // SAFETY: making an int.
            Ok(size) => unsafe { ffi::PyLong_FromSize_t(size) },
            Err(Raised) => null_mut(),
        }
    })
}

unsafe extern "C" fn get_write_buffer_limits(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| fields(object).marks.pair().map_or(null_mut(), Ref::into_ptr))
}

unsafe extern "C" fn set_write_buffer_limits(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, stream| {
        // SAFETY: the arguments of this call.
        let arguments = unsafe { Args::new(values, count, names) };
        let [high, low] = arguments.bind("set_write_buffer_limits", ["high", "low"], 0)?;
        stream.marks.set(high, low)?;
        // What asyncio would have sent already is no reason to pause.
        send::buffer_size(held, stream)?;
        send::maybe_pause(held, stream)
    })
}

unsafe extern "C" fn make_empty_waiter(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: as in `with`.
        let held = unsafe { Ref::from_borrowed(object) };
        let stream = fields(object);
        if !stream.empty_waiter.is_empty() {
            // SAFETY: reading a static of the interpreter.
            return raise_message(unsafe { ffi::PyExc_RuntimeError }, "Empty waiter is already set");
        }
        let made = send::buffer_size(&held, stream).and_then(|size| {
            let waiter = new_future(stream.event_loop.as_ptr())?;
            if size == 0 {
                crate::event_loop::completion::complete(stream.core(), &waiter).map_err(|Fatal| Raised)?;
            }
            stream.empty_waiter.set(Some(waiter.clone_ref()));
            Ok(waiter)
        });
        made.map_or(null_mut(), Ref::into_ptr)
    })
}

unsafe extern "C" fn reset_empty_waiter(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let stream = fields(object);
    stream.sending.clear(stream);
    stream.empty_waiter.clear();
    Ref::none().into_ptr()
}

unsafe extern "C" fn get_loop(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    let stream = fields(object);
    // asyncio lets go of the loop with the connection.
    if stream.fd.get() < 0 { Ref::none().into_ptr() } else { stream.event_loop.get_or_none() }
}

unsafe extern "C" fn get_sock(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the methods of this file run with the GIL held.
        let py = unsafe { Python::assume_attached() };
        match python(fields(object).python_socket(py)) {
            Ok(socket) => socket.unwrap_or_else(Ref::none).into_ptr(),
            Err(Raised) => null_mut(),
        }
    })
}

unsafe extern "C" fn get_sock_fd(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: making an int.
    unsafe { ffi::PyLong_FromLong(fields(object).fd.get().into()) }
}

unsafe extern "C" fn get_extra(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the methods of this file run with the GIL held.
        let py = unsafe { Python::assume_attached() };
        python(fields(object).full_extra(py)).map_or(null_mut(), |extra| extra.into_any().into_ptr())
    })
}

unsafe extern "C" fn get_protocol_paused(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    truth(fields(object).protocol_paused.get())
}

unsafe extern "C" fn get_protocol_field(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    fields(object).receiver.protocol.get_or_none()
}

/// As `set_protocol`; taking it away altogether is not on offer.
unsafe extern "C" fn set_protocol_field(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a borrowed argument, or null for a deletion.
        let Some(protocol) = (unsafe { Ref::from_nullable(value) }) else { return refuse_deletion() };
        match fields(object).receiver.set(protocol) {
            Ok(()) => 0,
            Err(Raised) => -1,
        }
    })
}

pub(crate) fn refuse_deletion() -> c_int {
    // SAFETY: reading a static of the interpreter.
    raise_message(unsafe { ffi::PyExc_AttributeError }, "cannot delete attribute");
    -1
}

unsafe extern "C" fn get_server(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    fields(object).server.get_or_none()
}

unsafe extern "C" fn get_conn_lost(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: making an int.
    unsafe { ffi::PyLong_FromUnsignedLong(fields(object).conn_lost.get().into()) }
}

unsafe extern "C" fn get_closing(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    truth(fields(object).closing.get())
}

unsafe extern "C" fn get_paused(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    truth(fields(object).paused.get())
}

unsafe extern "C" fn get_eof(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    truth(fields(object).eof.get())
}

pub(crate) const METHODS: &[Method] = &[
    Method::Fast(
        c"write",
        write,
        c"write(data)\n\nSend bytes. Small writes of one turn leave together at its end; nothing blocks.",
    ),
    Method::Fast(
        c"writelines",
        patchable!(fast, writelines, Writelines),
        c"writelines(list_of_data)\n\nSend several pieces, in order.",
    ),
    Method::NoArgs(c"write_eof", write_eof, c"Close the write side once everything pending is sent."),
    Method::NoArgs(c"can_write_eof", can_write_eof, c"True: a socket can be half-closed."),
    Method::NoArgs(
        c"close",
        patchable!(no_args, close, Close),
        c"Stop reading, send what is pending, then call connection_lost(None) and close the socket.",
    ),
    Method::NoArgs(c"abort", patchable!(no_args, abort, Abort), c"Close at once; what is pending is lost."),
    Method::OneArg(c"_force_close", force_close, c"Close at once with an exception for connection_lost."),
    Method::NoArgs(
        c"is_closing",
        patchable!(no_args, is_closing, IsClosing),
        c"True if the transport is closing or closed.",
    ),
    Method::NoArgs(
        c"is_reading",
        patchable!(no_args, is_reading, IsReading),
        c"True unless closing or paused.",
    ),
    Method::NoArgs(
        c"pause_reading",
        patchable!(no_args, pause_reading, PauseReading),
        c"Deliver no data until resume_reading().",
    ),
    Method::NoArgs(
        c"resume_reading",
        patchable!(no_args, resume_reading, ResumeReading),
        c"Deliver data again.",
    ),
    Method::Fast(
        c"set_protocol",
        patchable!(fast, set_protocol, SetProtocol),
        c"set_protocol(protocol)\n\nGive the connection to another protocol.",
    ),
    Method::NoArgs(
        c"get_protocol",
        patchable!(no_args, get_protocol, GetProtocol),
        c"The protocol, or None after connection_lost.",
    ),
    Method::Fast(
        c"get_extra_info",
        patchable!(fast, get_extra_info, GetExtraInfo),
        c"get_extra_info(name, default=None)\n\nsocket, sockname or peername.",
    ),
    Method::NoArgs(
        c"get_write_buffer_size",
        patchable!(no_args, get_write_buffer_size, GetWriteBufferSize),
        c"How many bytes the socket did not take yet.",
    ),
    Method::NoArgs(
        c"get_write_buffer_limits",
        patchable!(no_args, get_write_buffer_limits, GetWriteBufferLimits),
        c"(low, high) water marks in bytes.",
    ),
    Method::Fast(
        c"set_write_buffer_limits",
        patchable!(fast, set_write_buffer_limits, SetWriteBufferLimits),
        c"set_write_buffer_limits(high=None, low=None)\n\nWhen pause_writing and resume_writing are called.",
    ),
    Method::NoArgs(c"_make_empty_waiter", make_empty_waiter, c"A future that is done when all is sent."),
    Method::NoArgs(c"_reset_empty_waiter", reset_empty_waiter, c"Forget that future."),
];

/// What inherited code of asyncio reads beside the methods, and what other people's programs do.
pub(crate) fn attributes() -> Vec<Attribute> {
    let read = |name, get| Attribute { name, get, set: None };
    vec![
        Attribute { name: c"_protocol", get: get_protocol_field, set: Some(set_protocol_field) },
        read(c"_server", get_server),
        read(c"_conn_lost", get_conn_lost),
        read(c"_closing", get_closing),
        read(c"_paused", get_paused),
        read(c"_eof", get_eof),
        read(c"_loop", get_loop as ffi::getter),
        read(c"_sock", get_sock),
        read(c"_sock_fd", get_sock_fd),
        read(c"_extra", get_extra),
        read(c"_protocol_paused", get_protocol_paused),
    ]
}
