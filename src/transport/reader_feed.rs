//! Data straight into an `asyncio.StreamReader`, without a call of Python's.
//!
//! `StreamReaderProtocol.data_received` finds its reader and calls `feed_data`, which appends the data, wakes
//! the read that waits and checks the limit. [`feed`] does the same to the same attributes, but only where it
//! makes no difference: protocol and reader are of exactly these classes, neither class nor instance has another
//! method in the place of those that are skipped, and the code of these methods is the one that was read when this
//! was written (`wakeloop._streams` compares what it refers to). Everything out of the ordinary is left
//! to Python: the end of the stream, a reader that is gone, and data that goes beyond the limit, for which the
//! transport has to be paused.

use pyo3::ffi;
use pyo3::prelude::*;

use super::base::sizes::{DIRECT, LARGE};
use super::streams::{self, Reader};
use crate::capi::byte_array::ByteArray;
use crate::capi::inspect::{boolean, clear_error};
use crate::capi::once::Once;
use crate::capi::{Raised, Ref};
use crate::compat::Class;
use crate::event_loop::core::Core;

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
pub(crate) fn is_fed(protocol: &Ref) -> bool {
    CLASSES.get().is_some_and(|classes| classes.protocol.is_class_of(protocol))
        || streams::is_protocol(protocol)
}

/// Gives `data` to a reader that [`reader_of`] has found. False if Python code must do it this time: then
/// nothing has happened, and `protocol.data_received` is to be called with the data.
///
/// No Python code runs before the data is copied, but for what a user has put into the place of an attribute.
#[inline(always)]
pub(crate) fn feed(reader: &Ref, core: &Core, data: &[u8]) -> Result<bool, Raised> {
    if let Some(native) = open_reader(reader) {
        native.push(data, Some(&core.bytes_cache))?;
        return Ok(true);
    }
    let Some((classes, buffer)) = buffer_of(reader, data.len()) else { return Ok(false) };
    buffer.extend(data)?;
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
    Asyncio(&'static Class, ByteArray, usize),
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
    let length = buffer.len();
    let size = DIRECT.checked_sub(length).filter(|size| *size >= LARGE)?;
    if buffer.resize(length + size).is_err() {
        // A memoryview of it exists: asyncio's way ends in the same error.
        clear_error();
        return None;
    }
    // SAFETY: a bytearray of that length and `size` more.
    let place = unsafe { buffer.as_mut_ptr().add(length) };
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
                buffer.resize(length + count)?;
                if count == 0 { Ok(()) } else { wake(class, reader) }
            }
        }
    }
}

/// A native reader that takes data.
#[inline(always)]
fn open_reader(reader: &Ref) -> Option<&Reader> {
    streams::plain_reader(reader).filter(|reader| reader.is_open())
}

/// Drops errors of looking at an object: asyncio's own code will find the same.
#[inline(always)]
fn unless_error<T>(found: Result<Option<T>, Raised>) -> Option<T> {
    found.unwrap_or_else(|Raised| {
        clear_error();
        None
    })
}

/// The reader of a protocol for which [`is_fed`] holds, and which is what its class made it.
#[inline(always)]
pub(crate) fn reader_of(protocol: &Ref) -> Option<Ref> {
    let class = match CLASSES.get() {
        Some(classes) if classes.protocol.is_class_of(protocol) => &classes.protocol,
        _ => streams::protocol_class()?,
    };
    unless_error((|| {
        if !class.is_unpatched_on(protocol)? {
            return Ok(None);
        }
        Ok(referent(&class.get(protocol, REFERENCE)?))
    })())
}

/// The buffer of asyncio's reader, if the reader takes `size` more bytes without further ado.
#[inline(always)]
fn buffer_of(reader: &Ref, size: usize) -> Option<(&'static Classes, ByteArray)> {
    let classes = CLASSES.get()?;
    let buffer = unless_error((|| {
        let class = &classes.reader;
        if !class.is_unpatched_on(reader)? || !class.get(reader, EOF)?.is(&boolean(false)) {
            return Ok(None);
        }
        let buffer = ByteArray::exact(class.get(reader, BUFFER)?).ok();
        let limit = class.get(reader, LIMIT)?;
        Ok(buffer.filter(|buffer| has_room(buffer, &limit, size)))
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
fn has_room(buffer: &ByteArray, limit: &Ref, size: usize) -> bool {
    limit
        .exact_int()
        .and_then(|limit| usize::try_from(limit).ok())
        .is_some_and(|limit| limit > 0 && buffer.len().saturating_add(size) <= limit.saturating_mul(2))
}

/// `reader._wakeup_waiter()`.
#[inline(always)]
fn wake(class: &Class, reader: &Ref) -> Result<(), Raised> {
    let waiter = class.get(reader, WAITER)?;
    if waiter.is_none() {
        return Ok(());
    }
    class.set(reader, WAITER, Ref::none())?;
    streams::wake(&waiter)
}

/// From now on, readers of these classes are fed natively. Each class comes with the names of its instances'
/// attributes. Called by `wakeloop._streams`, which has made sure that the methods are what this file stands in
/// for.
#[pyfunction]
pub(crate) fn feed_readers(
    protocol: (Bound<'_, PyAny>, Vec<String>),
    reader: (Bound<'_, PyAny>, Vec<String>),
) -> PyResult<()> {
    CLASSES.set(Classes {
        protocol: Class::init(protocol.0, &PROTOCOL_METHODS, &protocol.1)?,
        reader: Class::init(reader.0, &READER_METHODS, &reader.1)?,
    });
    Ok(())
}
