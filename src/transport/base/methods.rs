//! The methods and attributes that every endpoint shows Python.

use std::ffi::c_void;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::endpoint::{Variant, fields, force_close, maybe_pause};
use super::watching::{watch_or_fail, watch_or_raise};
use crate::capi::call::guard;
use crate::capi::error::{raise, restore, take_exception};
use crate::capi::types::{Attribute, Method};
use crate::capi::{Args, Fatal, Raised, Ref};
use crate::compat::transports::patchable;
use crate::transport::stream::methods::{refuse_deletion, truth};

/// A method's frame: the endpoint held for the time of the call, and `None` or null as the result.
pub(crate) fn with<T: Variant>(
    object: *mut ffi::PyObject,
    body: impl FnOnce(&Ref, &T) -> Result<(), Raised>,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the tables below belong to endpoints of this variant; the caller holds a reference.
        let (held, variant) = unsafe { (Ref::from_borrowed(object), fields::<T>(object)) };
        match body(&held, variant) {
            Ok(()) => Ref::none().into_ptr(),
            Err(Raised) => null_mut(),
        }
    })
}

/// The fields of the receiver.
fn of<'a, T: Variant>(object: *mut ffi::PyObject) -> &'a T {
    // SAFETY: as in `with`.
    unsafe { fields::<T>(object) }
}

/// Ends the endpoint at once; what was gathered in this turn counts as written before.
pub(crate) unsafe extern "C" fn abort<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, variant: &T| {
        let sent = variant.send_gathered(held).map_err(|Raised| take_exception());
        force_close(held, variant, None);
        sent.map_err(|exception| {
            raise(exception);
            Raised
        })
    })
}

unsafe extern "C" fn get_write_buffer_size<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: as in `with`.
        let (held, variant) = unsafe { (Ref::from_borrowed(object), fields::<T>(object)) };
        match variant.send_gathered(&held) {
            // SAFETY: making an int.
            Ok(()) => unsafe { ffi::PyLong_FromSize_t(variant.unsent()) },
            Err(Raised) => null_mut(),
        }
    })
}

unsafe extern "C" fn is_closing<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    truth(of::<T>(object).endpoint().closing.get())
}

unsafe extern "C" fn is_reading<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    truth(of::<T>(object).endpoint().is_reading())
}

unsafe extern "C" fn pause_reading<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, variant: &T| {
        if !variant.endpoint().is_reading() {
            return Ok(());
        }
        variant.endpoint().paused.set(true);
        watch_or_fail(held, variant, variant.endpoint().core()).map_err(|Fatal| Raised)?;
        debug_line(held, variant, "paused_reading")
    })
}

unsafe extern "C" fn resume_reading<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, variant: &T| {
        let endpoint = variant.endpoint();
        if endpoint.closing.get() || !endpoint.paused.replace(false) {
            return Ok(());
        }
        endpoint.resume();
        variant.resumed(endpoint.core());
        watch_or_raise(held, variant, endpoint.core())?;
        debug_line(held, variant, "resumed_reading")
    })
}

fn debug_line<T: Variant>(object: &Ref, variant: &T, line: &str) -> Result<(), Raised> {
    let core = variant.endpoint().core();
    if !core.is_debug() {
        return Ok(());
    }
    core.support(line, &[object.as_ptr()]).map_err(|Fatal| Raised)
}

unsafe extern "C" fn set_protocol<T: Variant>(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |_, variant: &T| {
        // SAFETY: the arguments of this call.
        let protocol = unsafe { Args::new(values, count, names) }.one("set_protocol", "protocol")?;
        // SAFETY: a borrowed argument.
        variant.endpoint().protocol.set(Some(unsafe { Ref::from_borrowed(protocol) }));
        Ok(())
    })
}

unsafe extern "C" fn get_protocol<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    of::<T>(object).endpoint().protocol.get_or_none()
}

unsafe extern "C" fn get_extra_info<T: Variant>(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the arguments of this call; the caller holds the endpoint and the GIL.
        let (arguments, py) = unsafe { (Args::new(values, count, names), Python::assume_attached()) };
        let Ok([name, default]) = arguments.bind("get_extra_info", ["name", "default"], 1) else {
            return null_mut();
        };
        // SAFETY: borrowed arguments.
        let (name, default) = unsafe { (Bound::from_borrowed_ptr(py, name), Ref::from_nullable(default)) };
        let extra = of::<T>(object).endpoint().extra.get();
        let found = extra.map_or(Ok(None), |extra| {
            extra.bind(py).cast::<pyo3::types::PyDict>().map_err(PyErr::from)?.get_item(name)
        });
        match found.map_err(|error| restore(py, error)) {
            Ok(Some(value)) => value.into_ptr(),
            Ok(None) => default.unwrap_or_else(Ref::none).into_ptr(),
            Err(Raised) => null_mut(),
        }
    })
}

unsafe extern "C" fn get_write_buffer_limits<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| of::<T>(object).endpoint().marks.pair().map_or(null_mut(), Ref::into_ptr))
}

unsafe extern "C" fn set_write_buffer_limits<T: Variant>(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, variant: &T| {
        // SAFETY: the arguments of this call.
        let arguments = unsafe { Args::new(values, count, names) };
        let [high, low] = arguments.bind("set_write_buffer_limits", ["high", "low"], 0)?;
        variant.endpoint().marks.set(high, low)?;
        variant.send_gathered(held)?;
        maybe_pause(held, variant)
    })
}

unsafe extern "C" fn get_loop<T: Variant>(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    let endpoint = of::<T>(object).endpoint();
    // asyncio lets go of the loop with the connection.
    if endpoint.fd.get() < 0 { Ref::none().into_ptr() } else { endpoint.event_loop.get_or_none() }
}

unsafe extern "C" fn get_extra<T: Variant>(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    of::<T>(object).endpoint().extra.get_or_none()
}

unsafe extern "C" fn get_protocol_paused<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    truth(of::<T>(object).endpoint().protocol_paused.get())
}

/// The Python object that owns the descriptor.
unsafe extern "C" fn get_owner<T: Variant>(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    of::<T>(object).endpoint().owner.get_or_none()
}

/// Takes the descriptor's owner away: who does that closes it himself, and gets no ResourceWarning.
unsafe extern "C" fn set_owner<T: Variant>(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> std::ffi::c_int {
    guard(|| {
        // SAFETY: a borrowed argument, or null for a deletion; the address of `None`.
        let value = unsafe { Ref::from_nullable(value).filter(|it| it.as_ptr() != ffi::Py_None()) };
        of::<T>(object).endpoint().owner.set(value);
        0
    })
}

unsafe extern "C" fn get_descriptor<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: making an int.
    unsafe { ffi::PyLong_FromLong(of::<T>(object).endpoint().fd.get().into()) }
}

unsafe extern "C" fn get_protocol_field<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    of::<T>(object).endpoint().protocol.get_or_none()
}

/// As `set_protocol`.
unsafe extern "C" fn set_protocol_field<T: Variant>(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> std::ffi::c_int {
    guard(|| {
        // SAFETY: a borrowed argument, or null for a deletion.
        let Some(protocol) = (unsafe { Ref::from_nullable(value) }) else { return refuse_deletion() };
        of::<T>(object).endpoint().protocol.set(Some(protocol));
        0
    })
}

unsafe extern "C" fn get_conn_lost<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: making an int.
    unsafe { ffi::PyLong_FromUnsignedLong(of::<T>(object).endpoint().conn_lost.get().into()) }
}

unsafe extern "C" fn get_closing<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    truth(of::<T>(object).endpoint().closing.get())
}

unsafe extern "C" fn get_paused<T: Variant>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    truth(of::<T>(object).endpoint().paused.get())
}

/// What every endpoint can do.
pub(crate) fn common<T: Variant>() -> Vec<Method> {
    vec![
        Method::NoArgs(
            c"is_closing",
            patchable!(no_args, is_closing::<T: Variant>, IsClosing),
            c"True if the transport is closing or closed.",
        ),
        Method::Fast(
            c"set_protocol",
            patchable!(fast, set_protocol::<T: Variant>, SetProtocol),
            c"set_protocol(protocol)\n\nGive the transport to another protocol.",
        ),
        Method::NoArgs(
            c"get_protocol",
            patchable!(no_args, get_protocol::<T: Variant>, GetProtocol),
            c"The protocol, or None after connection_lost.",
        ),
        Method::Fast(
            c"get_extra_info",
            patchable!(fast, get_extra_info::<T: Variant>, GetExtraInfo),
            c"get_extra_info(name, default=None)\n\nThe socket and its names, or the pipe.",
        ),
    ]
}

/// What those that read can do.
pub(crate) fn reading<T: Variant>() -> Vec<Method> {
    vec![
        Method::NoArgs(
            c"is_reading",
            patchable!(no_args, is_reading::<T: Variant>, IsReading),
            c"True unless closing or paused.",
        ),
        Method::NoArgs(
            c"pause_reading",
            patchable!(no_args, pause_reading::<T: Variant>, PauseReading),
            c"Deliver nothing until resume_reading().",
        ),
        Method::NoArgs(
            c"resume_reading",
            patchable!(no_args, resume_reading::<T: Variant>, ResumeReading),
            c"Deliver again.",
        ),
    ]
}

/// What those that write can do.
pub(crate) fn writing<T: Variant>() -> Vec<Method> {
    vec![
        Method::NoArgs(c"abort", patchable!(no_args, abort::<T: Variant>, Abort), c"Close at once; what was not taken yet is lost."),
        Method::NoArgs(
            c"get_write_buffer_size",
            patchable!(no_args, get_write_buffer_size::<T: Variant>, GetWriteBufferSize),
            c"How many bytes wait to be taken.",
        ),
        Method::NoArgs(
            c"get_write_buffer_limits",
            patchable!(no_args, get_write_buffer_limits::<T: Variant>, GetWriteBufferLimits),
            c"(low, high) water marks in bytes.",
        ),
        Method::Fast(
            c"set_write_buffer_limits",
            patchable!(fast, set_write_buffer_limits::<T: Variant>, SetWriteBufferLimits),
            c"set_write_buffer_limits(high=None, low=None)\n\nWhen pause_writing and resume_writing are called.",
        ),
    ]
}

/// What inherited code of asyncio reads beside the methods, and what other people's programs do.
pub(crate) fn attributes<T: Variant>() -> Vec<Attribute> {
    let read = |name, get| Attribute { name, get, set: None };
    let (owner, descriptor) = T::OWNER;
    vec![
        Attribute { name: owner, get: get_owner::<T>, set: Some(set_owner::<T>) },
        read(descriptor, get_descriptor::<T>),
        read(c"_loop", get_loop::<T> as ffi::getter),
        read(c"_extra", get_extra::<T>),
        read(c"_protocol_paused", get_protocol_paused::<T>),
        read(c"_conn_lost", get_conn_lost::<T>),
        read(c"_closing", get_closing::<T>),
        read(c"_paused", get_paused::<T>),
        Attribute { name: c"_protocol", get: get_protocol_field::<T>, set: Some(set_protocol_field::<T>) },
    ]
}
