//! The transport of the application's protocol.
//!
//! It is a heap type that inherits from asyncio's `_SSLProtocolTransport`, and overrides `write` and `writelines`. It
//! has one more field, a member like those of `__slots__`, which the interpreter traverses and clears.
//! `wakeloop._net.tls.SSLTransport` inherits from it.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;

use super::connection::{Connection, call_named};
use super::write::{accepts, fail, immutable, push, pushed};
use crate::capi::buffer::is_scattered;
use crate::capi::class::{ClassSpec, field};
use crate::capi::fallible::{self, py_tuple};
use crate::capi::imports::defined_class;
use crate::capi::imports::imports;
use crate::capi::methods::Method;
use crate::capi::native::native_class;
use crate::capi::{Borrowed, Exception, Raised, Slot, This};

/// The field that the class adds to asyncio's.
struct Fields {
    /// The connection. `wakeloop._net.tls` deletes it when asyncio's code has dropped the connection.
    connection: Slot,
}

/// The offset of the field: after the fields of asyncio's class. Stored once, at import.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

// `make_type` builds the class, with room for the field at this offset. Zeroed memory is an empty slot. The garbage
// collection functions are inherited, and handle the member.
native_class!(unsafe Fields, collected false, offset OFFSET.load(Ordering::Relaxed));

/// Calls `body` with the connection, and keeps it alive during the call.
#[inline(always)]
fn with(
    this: This<'_, Fields>,
    body: impl FnOnce(This<'_, Connection>) -> Result<(), Raised>,
) -> Result<(), Raised> {
    let Some(held) = this.connection.get() else { return Ok(()) };
    // Python code can set the attribute to any object.
    match held.with_native(body) {
        Some(done) => done,
        None => Err(Exception::TypeError.raise("_connection is not a TLS connection")),
    }
}

/// Refuses data of another type as asyncio does, also once the connection was dropped.
#[inline(always)]
fn write(this: This<'_, Fields>, data: Borrowed<'_>) -> Result<(), Raised> {
    if !(data.is_bytes() || data.is_bytearray() || data.is_memoryview()) {
        let kind = data.bind(this.py()).get_type().name()?;
        return Err(Exception::TypeError.raise(&format!("data: expecting a bytes-like instance, got {kind}")));
    }
    with(this, |connection| write_data(connection, data))
}

#[inline(always)]
fn write_data(this: This<'_, Connection>, data: Borrowed<'_>) -> Result<(), Raised> {
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
    push(this, data)?;
    pushed(this)
}

fn write_list(this: This<'_, Connection>, list: Borrowed<'_>) -> Result<(), Raised> {
    if !accepts(this) {
        return written_to_lost(this);
    }
    // All items are checked before the first one is sent, so that nothing is sent if one is wrong.
    let items = list.to_tuple()?;
    let mut pieces = Vec::new();
    for item in items.tuple_items().unwrap_or_default() {
        match immutable(item) {
            Ok(piece) => fallible::push(&mut pieces, piece)?,
            Err(raised) => return not_taken(this, raised),
        }
    }
    if !accepts(this) {
        return written_to_lost(this);
    }
    this.queue.reserve(pieces.len())?;
    for piece in pieces {
        push(this, piece)?;
    }
    pushed(this)
}

/// Handles a buffer that cannot be read. As in asyncio, a non-contiguous one is an error of the encryption, which
/// closes the connection, and not of the write.
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

/// A write to a closed connection. asyncio's code counts it, and logs a warning after some of them.
#[cold]
fn written_to_lost(this: This<'_, Connection>) -> Result<(), Raised> {
    call_named(this, "_write_appdata", &[imports().no_arguments.borrow()])
}

const METHODS: &[Method<Fields>] = &[
    Method::one_arg(c"write", write, c"write(data)\n\nEncrypt and send bytes."),
    Method::one_arg(
        c"writelines",
        |this: This<'_, Fields>, list: Borrowed<'_>| with(this, |connection| write_list(connection, list)),
        c"writelines(list_of_data)\n\nEncrypt and send several bytes-like objects, in order.",
    ),
];

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let base = defined_class(py, "asyncio.sslproto", "_SSLProtocolTransport")?;
    let base_type = base.clone().cast_into::<pyo3::types::PyType>()?;
    // SAFETY: a live type object.
    let size = unsafe { (*base_type.as_type_ptr()).tp_basicsize } as usize;
    // Ordering: Relaxed. It is stored at import.
    OFFSET.store(size.next_multiple_of(align_of::<Fields>()), Ordering::Relaxed);
    // SAFETY: zeroed memory is an empty slot.
    unsafe { ClassSpec::<Fields>::new(c"wakeloop._core.SSLTransport").derivable() }
        .doc(c"The transport that the protocol of a TLS connection writes to.")
        .methods(METHODS)
        .object_member(c"_connection", field!(Fields, connection))
        .bases(py_tuple(py, [base])?)
        .build(py)
}
