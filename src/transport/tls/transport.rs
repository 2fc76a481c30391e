//! The transport that the application's protocol gets.
//!
//! asyncio's own `_SSLProtocolTransport` with a native `write` and `writelines` in front: a raw type on top of
//! that Python class, with one slot more, which the interpreter traverses and clears as it does the `__slots__`
//! of a class. `wakeloop._tls.SSLTransport` is the class that is used.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::connection::{Connection, connection_of, is_connection};
use super::write::{accepts, immutable, push, pushed};
use crate::capi::buffer::is_scattered;
use crate::capi::call::{guard, method};
use crate::capi::error::raise_message;
use crate::capi::fallible::{interned, py_tuple};
use crate::capi::imports::imports;
use crate::capi::types::{Method, TypeSpec};
use crate::capi::{Fallible, Raised, Ref};

/// Where the slot with the connection lies: behind asyncio's class.
static SLOT: AtomicUsize = AtomicUsize::new(0);

/// A method's frame: the connection held for the time of the call.
#[inline(always)]
fn with(
    object: *mut ffi::PyObject,
    body: impl FnOnce(&Ref, &Connection) -> Result<(), Raised>,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the tables below belong to this type, whose instances have the slot. What is in it is checked:
        // it is an attribute that anybody may set.
        let held = unsafe {
            let slot = object.cast::<u8>().add(SLOT.load(Ordering::Relaxed)).cast::<*mut ffi::PyObject>();
            Ref::from_nullable(*slot)
        };
        // Closed twice: the transport has let go of its connection.
        let Some(held) = held else { return Ref::none().into_ptr() };
        if !is_connection(held.as_ptr()) {
            // SAFETY: reading a static of the interpreter.
            return raise_message(unsafe { ffi::PyExc_TypeError }, "_connection is not a TLS connection");
        }
        // SAFETY: just checked.
        let connection = unsafe { connection_of(held.as_ptr()) };
        match body(&held, connection) {
            Ok(()) => Ref::none().into_ptr(),
            Err(Raised) => null_mut(),
        }
    })
}

unsafe extern "C" fn write(object: *mut ffi::PyObject, data: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, connection| {
        // SAFETY: a borrowed argument.
        let known = unsafe {
            ffi::PyBytes_Check(data) != 0
                || ffi::PyByteArray_Check(data) != 0
                || ffi::PyMemoryView_Check(data) != 0
        };
        if !known {
            return refuse(data);
        }
        let data = match immutable(data) {
            Ok(data) => data,
            Err(raised) => return not_taken(held, connection, raised),
        };
        // SAFETY: a bytes object.
        if unsafe { ffi::PyBytes_Size(data.as_ptr()) } == 0 {
            return Ok(());
        }
        if !accepts(connection) {
            return written_to_lost(held);
        }
        push(connection, data);
        pushed(held, connection)
    })
}

unsafe extern "C" fn writelines(object: *mut ffi::PyObject, list: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, connection| {
        if !accepts(connection) {
            return written_to_lost(held);
        }
        // All of it is looked at before any of it is sent, so that a wrong item sends nothing.
        // SAFETY: live objects; an owned result, wrapped at once.
        let items = unsafe { Ref::from_owned(ffi::PySequence_List(list)) }.ok_or(Raised)?;
        // SAFETY: a list.
        let count = unsafe { ffi::PyList_Size(items.as_ptr()) };
        let mut pieces = Vec::with_capacity(count.max(0) as usize);
        for index in 0..count {
            // Held, and looked for each time: the collector shows the list to whoever asks for all objects.
            // SAFETY: a list; a borrowed reference to an item, or null with an error.
            let item = unsafe { Ref::from_nullable(ffi::PyList_GetItem(items.as_ptr(), index)) };
            match immutable(item.ok_or(Raised)?.as_ptr()) {
                Ok(piece) => pieces.push(piece),
                Err(raised) => return not_taken(held, connection, raised),
            }
        }
        if !accepts(connection) {
            return written_to_lost(held);
        }
        for piece in pieces {
            push(connection, piece);
        }
        pushed(held, connection)
    })
}

/// Of data with an error: what does not lie in one piece is found out when it is encrypted.
#[cold]
fn not_taken(object: &Ref, connection: &Connection, raised: Raised) -> Result<(), Raised> {
    if !is_scattered() {
        return Err(raised);
    }
    if accepts(connection) {
        return connection.fatal_error(object, raised);
    }
    drop(raised.take());
    written_to_lost(object)
}

#[cold]
fn refuse(data: *mut ffi::PyObject) -> Result<(), Raised> {
    // SAFETY: a borrowed argument; the GIL is held.
    let name = unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), data) }
        .get_type()
        .name()
        .map_or_else(|_| String::new(), |name| name.to_string());
    raise_message(
        // SAFETY: reading a static of the interpreter.
        unsafe { ffi::PyExc_TypeError },
        &format!("data: expecting a bytes-like instance, got {name}"),
    );
    Err(Raised)
}

/// asyncio counts writes to a closed connection, and warns after some.
#[cold]
fn written_to_lost(connection: &Ref) -> Result<(), Raised> {
    let name = interned("_write_appdata")?;
    method(connection, name.as_ptr(), &[imports().no_arguments.as_ptr()]).map(drop)
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
