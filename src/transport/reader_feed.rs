//! Data straight into an `asyncio.StreamReader`, without a call of Python's.
//!
//! `StreamReaderProtocol.data_received` finds its reader and calls `feed_data`, which appends the data, wakes
//! whoever waits and looks at the limit. [`feed`] does the same to the same attributes, but only where nobody
//! could tell: protocol and reader are of exactly these classes, neither class nor instance has another
//! method in the place of those that are skipped, and the code of these methods is the one that was read when this
//! was written (`wakeloop._streams` compares what it refers to). Everything out of the ordinary is left
//! to Python: the end of the stream, a reader that is gone, and data that goes beyond the limit, for which the
//! transport has to be paused.

use pyo3::ffi;
use pyo3::prelude::*;

use super::base::sizes::{DIRECT, LARGE};
use super::streams::{self, Reader};
use crate::capi::error::{fetch, take_exception};
use crate::capi::once::Once;
use crate::capi::{Raised, Ref};
use crate::compat::Class;

/// asyncio's two classes.
#[derive(Debug)]
struct Classes {
    protocol: Class,
    reader: Class,
}

static CLASSES: Once<Classes> = Once::new();

const PROTOCOL_METHODS: [&str; 2] = ["data_received", "_stream_reader"];
const READER_METHODS: [&str; 2] = ["feed_data", "_wakeup_waiter"];

/// The attributes by their places among those that `wakeloop._streams` names.
const REFERENCE: usize = 0;
const EOF: usize = 0;
const BUFFER: usize = 1;
const LIMIT: usize = 2;
const WAITER: usize = 3;

/// Is `protocol` of a class that [`reader_of`] knows?
pub(crate) fn is_fed(protocol: *mut ffi::PyObject) -> bool {
    CLASSES.get().is_some_and(|classes| classes.protocol.is_class_of(protocol))
        || streams::is_protocol(protocol)
}

/// Gives `data` to a reader that [`reader_of`] has found. False if that is Python's business this time: then
/// nothing has happened, and `protocol.data_received` is to be called with the data.
///
/// No Python code runs before the data is copied, but for what a user has put into the place of an attribute.
#[inline(always)]
pub(crate) fn feed(reader: &Ref, data: &[u8]) -> Result<bool, Raised> {
    if let Some(native) = open_reader(reader) {
        native.push(data)?;
        return Ok(true);
    }
    let Some((classes, buffer)) = buffer_of(reader, data.len()) else { return Ok(false) };
    streams::extend(&buffer, data)?;
    wake(&classes.reader, reader)?;
    Ok(true)
}

/// Where to receive a large message so that it need not be copied. The reader's store is longer than its data while
/// this lives: nothing else may run until [`Room::filled`].
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) place: *mut u8,
    pub(crate) size: usize,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    Native,
    /// The buffer of asyncio's reader, and how much of it is data.
    Asyncio(&'static Class, Ref, usize),
}

/// Room in a reader that [`reader_of`] has found: in a native one if a large read waits, in one of asyncio's if
/// `large` data is expected. `None` where the data must come another way.
#[inline(always)]
pub(crate) fn room(reader: &Ref, large: bool) -> Option<Result<Room, Raised>> {
    if let Some(native) = open_reader(reader) {
        let room = native.room()?;
        return Some(room.map(|room| Room { place: room.place, size: room.size, owner: Owner::Native }));
    }
    large.then(|| room_in_buffer(reader))?.map(Ok)
}

fn room_in_buffer(reader: &Ref) -> Option<Room> {
    let (classes, buffer) = buffer_of(reader, DIRECT)?;
    // SAFETY: `buffer_of` gives nothing but bytearrays.
    let length = unsafe { ffi::PyByteArray_Size(buffer.as_ptr()) } as usize;
    let size = DIRECT.checked_sub(length).filter(|size| *size >= LARGE)?;
    if resize(&buffer, length + size).is_err() {
        // Somebody looks at it through a memoryview: asyncio's way ends in the same error.
        drop(take_exception());
        return None;
    }
    // SAFETY: a bytearray of that length and `size` more.
    let place = unsafe { ffi::PyByteArray_AsString(buffer.as_ptr()).add(length) }.cast();
    Some(Room { place, size, owner: Owner::Asyncio(&classes.reader, buffer, length) })
}

impl Room {
    /// The first `count` bytes have been received. With none the reader is as it was.
    #[inline(always)]
    pub(crate) fn filled(self, reader: &Ref, count: usize) -> Result<(), Raised> {
        match self.owner {
            Owner::Native if count == 0 => Ok(()),
            // None only if the reader was closed, and nothing has run since there was room.
            Owner::Native => open_reader(reader).map_or(Ok(()), |native| native.filled(count)),
            Owner::Asyncio(class, buffer, length) => {
                resize(&buffer, length + count)?;
                if count == 0 { Ok(()) } else { wake(class, reader) }
            }
        }
    }
}

fn resize(bytearray: &Ref, size: usize) -> Result<(), Raised> {
    // SAFETY: the callers have nothing but bytearrays; -1 with an error set means failure.
    match unsafe { ffi::PyByteArray_Resize(bytearray.as_ptr(), size as ffi::Py_ssize_t) } {
        0 => Ok(()),
        _ => Err(Raised),
    }
}

/// A native reader that takes data.
#[inline(always)]
fn open_reader(reader: &Ref) -> Option<&Reader> {
    streams::plain_reader(reader).filter(|reader| reader.is_open())
}

/// Errors of looking at an object are dropped: Python's own code comes to the same.
#[inline(always)]
fn unless_error<T>(found: Result<Option<T>, Raised>) -> Option<T> {
    found.unwrap_or_else(|Raised| {
        drop(take_exception());
        None
    })
}

/// The reader of a protocol for which [`is_fed`] holds, and which is what its class made it.
#[inline(always)]
pub(crate) fn reader_of(protocol: &Ref) -> Option<Ref> {
    let object = protocol.as_ptr();
    let class = match CLASSES.get() {
        Some(classes) if classes.protocol.is_class_of(object) => &classes.protocol,
        _ => streams::protocol_class()?,
    };
    unless_error((|| {
        if !class.is_unpatched_on(object)? {
            return Ok(None);
        }
        Ok(referent(&class.get(object, REFERENCE)?))
    })())
}

/// The buffer of asyncio's reader, if the reader takes `size` more bytes without further ado.
#[inline(always)]
fn buffer_of(reader: &Ref, size: usize) -> Option<(&'static Classes, Ref)> {
    let (classes, object) = (CLASSES.get()?, reader.as_ptr());
    let buffer = unless_error((|| {
        let class = &classes.reader;
        // SAFETY: comparing with the address of a static.
        if !class.is_unpatched_on(object)? || class.get(object, EOF)?.as_ptr() != unsafe { ffi::Py_False() } {
            return Ok(None);
        }
        let buffer = class.get(object, BUFFER)?;
        Ok(has_room(&buffer, &class.get(object, LIMIT)?, size)?.then_some(buffer))
    })())?;
    Some((classes, buffer))
}

/// What an exact weak reference leads to.
#[inline(always)]
fn referent(reference: &Ref) -> Option<Ref> {
    let mut referent = std::ptr::null_mut();
    // SAFETY: a live object, asked only if it is a weak reference; an owned reference or null.
    unsafe {
        if ffi::PyWeakref_CheckRefExact(reference.as_ptr()) == 0 {
            return None;
        }
        ffi::compat::PyWeakref_GetRef(reference.as_ptr(), &mut referent);
        Ref::from_owned(referent)
    }
}

/// Does the buffer stay within what `feed_data` takes without pausing the transport?
#[inline(always)]
fn has_room(buffer: &Ref, limit: &Ref, size: usize) -> Result<bool, Raised> {
    // SAFETY: live objects; each function is called on the type that it is for. -1 may be an error.
    unsafe {
        if ffi::PyByteArray_CheckExact(buffer.as_ptr()) == 0 || ffi::PyLong_CheckExact(limit.as_ptr()) == 0 {
            return Ok(false);
        }
        let limit = ffi::PyLong_AsSsize_t(limit.as_ptr());
        if limit == -1 && !ffi::PyErr_Occurred().is_null() {
            return Err(Raised);
        }
        let length = ffi::PyByteArray_Size(buffer.as_ptr()) as usize;
        Ok(limit > 0 && length.saturating_add(size) <= (limit as usize).saturating_mul(2))
    }
}

/// `reader._wakeup_waiter()`.
#[inline(always)]
fn wake(class: &Class, reader: &Ref) -> Result<(), Raised> {
    let waiter = class.get(reader.as_ptr(), WAITER)?;
    // SAFETY: comparing with the address of `None`.
    if waiter.as_ptr() == unsafe { ffi::Py_None() } {
        return Ok(());
    }
    class.set(reader.as_ptr(), WAITER, Ref::none())?;
    streams::wake(&waiter)
}

/// From now on, readers of these classes are fed natively. Each class comes with the names of its instances'
/// attributes. Called by `wakeloop._streams`, which has made sure that the methods are what this file stands in
/// for.
#[pyfunction]
pub(crate) fn feed_readers(
    py: Python<'_>,
    protocol: (Bound<'_, PyAny>, Vec<String>),
    reader: (Bound<'_, PyAny>, Vec<String>),
) -> PyResult<()> {
    let error = |Raised| fetch(py);
    CLASSES.set(Classes {
        protocol: Class::init(protocol.0, &PROTOCOL_METHODS, &protocol.1).map_err(error)?,
        reader: Class::init(reader.0, &READER_METHODS, &reader.1).map_err(error)?,
    });
    Ok(())
}
