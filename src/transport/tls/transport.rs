//! The transport that the application's protocol gets.
//!
//! asyncio's own `_SSLProtocolTransport` with a native `write` and `writelines` in front: a raw type on top of
//! that Python class, with one slot more, which the interpreter traverses and clears as it does the `__slots__`
//! of a class. `wakeloop._tls.SSLTransport` is the class that is used.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::connection::{Connection, call_named};
use super::write::{accepts, fail, immutable, push, pushed};
use crate::capi::buffer::is_scattered;
use crate::capi::call::guard;
use crate::capi::fallible::py_tuple;
use crate::capi::imports::imports;
use crate::capi::types::{Method, TypeSpec};
use crate::capi::{Borrowed, Exception, Fallible, Raised, Ref, This};

/// Where the slot with the connection lies: behind asyncio's class.
static SLOT: AtomicUsize = AtomicUsize::new(0);

/// A method's frame: the connection, held for the time of the call, and the argument.
///
/// # Safety
/// The call of a method of this type with one argument.
#[inline(always)]
unsafe fn with(
    object: *mut ffi::PyObject,
    argument: *mut ffi::PyObject,
    body: impl FnOnce(This<'_, Connection>, Borrowed<'_>) -> Result<(), Raised>,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the tables below belong to this type, whose instances have the slot, and CPython passes a live argument.
        let (held, argument) = unsafe {
            let slot = object.cast::<u8>().add(SLOT.load(Ordering::Relaxed)).cast::<*mut ffi::PyObject>();
            (Ref::from_nullable(*slot), Borrowed::from_ptr(argument))
        };
        // Closed twice: the transport has let go of its connection.
        let Some(held) = held else { return Ref::none().into_ptr() };
        // Python code may set the attribute to anything.
        let done = match held.downcast::<Connection>() {
            Some(this) => body(this, argument),
            None => Err(Exception::TypeError.raise("_connection is not a TLS connection")),
        };
        done.map_or(null_mut(), |()| Ref::none().into_ptr())
    })
}

unsafe extern "C" fn write(object: *mut ffi::PyObject, data: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a row of the table below.
    unsafe { with(object, data, write_data) }
}

fn write_data(this: This<'_, Connection>, data: Borrowed<'_>) -> Result<(), Raised> {
    if !(data.is_bytes() || data.is_bytearray() || data.is_memoryview()) {
        let kind = data.bind(this.py()).get_type().name()?;
        return Err(Exception::TypeError.raise(&format!("data: expecting a bytes-like instance, got {kind}")));
    }
    let data = match immutable(&data) {
        Ok(data) => data,
        Err(raised) => return not_taken(this, raised),
    };
    if data.exact_bytes().unwrap_or_default().is_empty() {
        return Ok(());
    }
    if !accepts(this) {
        return written_to_lost(this);
    }
    push(this, data);
    pushed(this)
}

unsafe extern "C" fn writelines(object: *mut ffi::PyObject, list: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a row of the table below.
    unsafe { with(object, list, write_list) }
}

fn write_list(this: This<'_, Connection>, list: Borrowed<'_>) -> Result<(), Raised> {
    if !accepts(this) {
        return written_to_lost(this);
    }
    // All of it is looked at before any of it is sent, so that a wrong item sends nothing.
    let items = list.to_tuple()?;
    let mut pieces = Vec::new();
    for item in items.tuple_items().unwrap_or_default() {
        match immutable(item) {
            Ok(piece) => pieces.push(piece),
            Err(raised) => return not_taken(this, raised),
        }
    }
    if !accepts(this) {
        return written_to_lost(this);
    }
    for piece in pieces {
        push(this, piece);
    }
    pushed(this)
}

/// Data that does not lie in one piece is an error when it is encrypted, not when it is written.
#[cold]
fn not_taken(this: This<'_, Connection>, raised: Raised) -> Result<(), Raised> {
    if !is_scattered() {
        return Err(raised);
    }
    if accepts(this) {
        return fail(this, raised);
    }
    drop(raised.take());
    written_to_lost(this)
}

/// asyncio counts writes to a closed connection, and warns after some.
#[cold]
fn written_to_lost(this: This<'_, Connection>) -> Result<(), Raised> {
    call_named(this, "_write_appdata", &[imports().no_arguments.as_ptr()])
}

const METHODS: &[Method] = &[
    Method::OneArg(
        c"write",
        write,
        c"write(data)\n\nEncrypt and send bytes. Small writes of one turn leave together at its end.",
    ),
    Method::OneArg(
        c"writelines",
        writelines,
        c"writelines(list_of_data)\n\nEncrypt and send several pieces, in order.",
    ),
];

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let base = py.import(Fallible("asyncio.sslproto"))?.getattr(Fallible("_SSLProtocolTransport"))?;
    let base_type = base.clone().cast_into::<pyo3::types::PyType>()?;
    // SAFETY: a live type object.
    let size = unsafe { (*base_type.as_type_ptr()).tp_basicsize } as usize;
    let slot = size.next_multiple_of(align_of::<*mut ffi::PyObject>());
    SLOT.store(slot, Ordering::Relaxed);
    let spec = TypeSpec {
        name: c"wakeloop._core.SSLTransport",
        size: slot + size_of::<*mut ffi::PyObject>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE,
        methods: METHODS,
        attributes: &[],
        weaklist_offset: None,
        dict_offset: None,
        objects: &[(c"_connection", slot)],
        slots: &[],
        bases: Some(py_tuple(py, [base])?),
    };
    let kind = spec.build(py)?;
    // SAFETY: the type was just made and lives for ever.
    Ok(unsafe { Bound::from_borrowed_ptr(py, kind.cast()) })
}
