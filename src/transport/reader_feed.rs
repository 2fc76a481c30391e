//! Feeds data to an `asyncio.StreamReader` without calling Python code.
//!
//! `StreamReaderProtocol.data_received` calls `feed_data` of its reader. That appends the data, wakes the waiting read
//! and checks the limit. [`feed`] does the same with the same attributes, but only if a program cannot observe the
//! difference:
//! - Protocol and reader are instances of exactly these classes.
//! - The skipped methods are not patched, neither on the class nor on the instance.
//! - Their code is the known one: `wakeloop._net.streams` compares the names to which it refers.
//!
//! Python code handles all special cases: the end of the stream, a reader that is gone, and data beyond the limit, for
//! which the transport has to be paused.

use pyo3::ffi;
use pyo3::prelude::*;

use super::base::sizes::{DIRECT, LARGE};
use super::streams::{self, Reader};
use crate::capi::byte_array::ByteArray;
use crate::capi::inspect::clear_error;
use crate::capi::once::Once;
use crate::capi::section::FREE_THREADED;
use crate::capi::{Raised, Ref};
use crate::compat::Class;
use crate::kernel::core::Core;

/// asyncio's two classes.
#[derive(Debug)]
struct Classes {
    protocol: Class,
    reader: Class,
}

static CLASSES: Once<Classes> = Once::new();

const PROTOCOL_METHODS: [&str; 2] = ["data_received", "_stream_reader"];
const READER_METHODS: [&str; 2] = ["feed_data", "_wakeup_waiter"];

/// Indices of attributes in the lists that `wakeloop._net.streams` passes.
const REFERENCE: usize = 0;
const EOF: usize = 0;
const BUFFER: usize = 1;
const LIMIT: usize = 2;
const WAITER: usize = 3;

/// Is `protocol` an instance of one of the classes that [`reader_of`] supports?
pub(crate) fn is_fed(protocol: &Ref) -> bool {
    CLASSES.get().is_some_and(|classes| classes.protocol.is_class_of(protocol))
        || streams::is_protocol(protocol)
}

/// Feeds `data` to a reader that [`reader_of`] has returned. Returns false, and does nothing, if the caller has to call
/// `protocol.data_received` instead.
///
/// No Python code runs before the data is copied, except for descriptors that a program has set as attributes.
#[inline(always)]
pub(crate) fn feed(reader: &Ref, core: &Core, data: &[u8]) -> Result<bool, Raised> {
    let fed = reader.hold(|| open_reader(reader).map(|native| native.push(data, Some(&core.bytes_cache))));
    if let Some(fed) = fed {
        return fed.map(|()| true);
    }
    let Some((classes, buffer)) = buffer_of(reader, data.len()) else { return Ok(false) };
    buffer.extend(data)?;
    wake(&classes.reader, reader)?;
    Ok(true)
}

/// Memory in a reader, to receive a large message without a copy. The reader's buffer is longer than its data until
/// [`Room::filled`] is called, so no other code may run before that.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) place: *mut u8,
    pub(crate) size: usize,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    Native,
    /// The buffer of asyncio's reader, and the length of its data.
    Asyncio(&'static Class, ByteArray, usize),
}

/// Room in a reader that [`reader_of`] has returned: in a native reader if a large read is waiting, in asyncio's reader
/// if `large` data is expected. `None` if the data has to be received elsewhere.
#[inline(always)]
pub(crate) fn room(reader: &Ref, large: bool) -> Option<Result<Room, Raised>> {
    if FREE_THREADED {
        // Another thread could use the memory before it is filled.
        return None;
    }
    if let Some(room) = reader.hold(|| open_reader(reader).map(Reader::room)) {
        return Some(room?.map(|room| Room { place: room.place, size: room.size, owner: Owner::Native }));
    }
    large.then(|| room_in_buffer(reader))?.map(Ok)
}

fn room_in_buffer(reader: &Ref) -> Option<Room> {
    let (classes, buffer) = buffer_of(reader, DIRECT)?;
    let length = buffer.len();
    let size = DIRECT.checked_sub(length).filter(|size| *size >= LARGE)?;
    if buffer.resize(length + size).is_err() {
        // There is a memoryview of the buffer. asyncio's code will raise the same error.
        clear_error();
        return None;
    }
    // SAFETY: the bytearray has `length + size` bytes.
    let place = unsafe { buffer.as_mut_ptr().add(length) };
    Some(Room { place, size, owner: Owner::Asyncio(&classes.reader, buffer, length) })
}

impl Room {
    /// `count` bytes were received. With 0 the reader is unchanged.
    #[inline(always)]
    pub(crate) fn filled(self, reader: &Ref, count: usize) -> Result<(), Raised> {
        match self.owner {
            Owner::Native if count == 0 => Ok(()),
            // `open_reader` cannot fail here: no code has run since the room was reserved.
            Owner::Native => {
                reader.hold(|| open_reader(reader).map_or(Ok(()), |native| native.filled(count)))
            }
            Owner::Asyncio(class, buffer, length) => {
                buffer.resize(length + count)?;
                if count == 0 { Ok(()) } else { wake(class, reader) }
            }
        }
    }
}

/// How many bytes have to arrive before a read of a native reader does anything; 0 if any number is enough.
pub(crate) fn missing(reader: &Ref) -> usize {
    reader.hold(|| open_reader(reader).map_or(0, Reader::missing))
}

/// The fields of a plain native reader that has not ended.
#[inline(always)]
fn open_reader(reader: &Ref) -> Option<&Reader> {
    streams::plain_reader(reader).filter(|reader| reader.is_open())
}

/// Turns an error into `None`. asyncio's own code will raise it.
#[inline(always)]
fn unless_error<T>(found: Result<Option<T>, Raised>) -> Option<T> {
    found.unwrap_or_else(|Raised| {
        clear_error();
        None
    })
}

/// The reader of a protocol for which [`is_fed`] is true. `None` if it is patched or has no reader.
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

/// The buffer of asyncio's reader, if it is unpatched and `feed_data` would append `size` bytes without pausing the
/// transport.
#[inline(always)]
fn buffer_of(reader: &Ref, size: usize) -> Option<(&'static Classes, ByteArray)> {
    if FREE_THREADED {
        // Another thread could change the bytearray between two of the steps.
        return None;
    }
    let classes = CLASSES.get()?;
    let buffer = unless_error((|| {
        let class = &classes.reader;
        if !class.is_unpatched_on(reader)? || !class.is_false(reader, EOF)? {
            return Ok(None);
        }
        let buffer = ByteArray::exact(class.get(reader, BUFFER)?).ok();
        let limit = class.get(reader, LIMIT)?;
        Ok(buffer.filter(|buffer| has_room(buffer, &limit, size)))
    })())?;
    Some((classes, buffer))
}

/// The object of a weak reference.
#[inline(always)]
fn referent(reference: &Ref) -> Option<Ref> {
    let mut referent = std::ptr::null_mut();
    // SAFETY: a live object, whose type is checked first. The call stores an owned reference or null.
    unsafe {
        if ffi::PyWeakref_CheckRefExact(reference.as_ptr()) == 0 {
            return None;
        }
        ffi::compat::PyWeakref_GetRef(reference.as_ptr(), &mut referent);
        Ref::from_owned(referent)
    }
}

/// Would `feed_data` append `size` bytes without pausing the transport?
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

/// From now on, readers of these classes are fed natively. Each class is passed with the names of its instances'
/// attributes. Called by `wakeloop._net.streams`, after it has checked that the methods are the known ones.
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
