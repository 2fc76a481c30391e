//! The engine that works for every connection: calls the methods of CPython's SSLObject with its MemoryBIOs.

use std::cell::Cell;

use pyo3::ffi;
use pyo3::prelude::*;

use super::records::{End, RECORD, Wrote, wrote};
use super::ssl_module::is_again;
use crate::capi::buffer::bytes_from;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::{Exception, Fallible, Raised, Ref, Slot};

/// Below this size, a copy of the input is cheaper than a memoryview of it.
const COPY: usize = 4 * 1024;

/// The objects, and their bound methods, which are looked up once.
#[derive(Debug)]
pub(crate) struct Object {
    pub(super) read: Slot,
    pub(super) write: Slot,
    pub(super) incoming: Slot,
    pub(super) feed: Slot,
    pub(super) outgoing: Slot,
    pub(super) drain: Slot,
    /// The methods are CPython's own. They keep no reference to a buffer, so they may get a view of our memory.
    pub(super) lends: bool,
    /// How many bytes of ciphertext were added since the last read.
    pub(super) fed: Cell<usize>,
}

/// The outcome of reading a message.
#[derive(Debug)]
pub(super) enum Message {
    /// All data that was there.
    Whole(Ref),
    /// There may be more data, to be delivered in the same call of the protocol.
    Part(Ref),
    Nothing(End),
}

impl Object {
    /// An engine with the methods of `object`. With `lends`, all three objects are of CPython's own classes.
    pub(super) fn new(
        object: &Bound<'_, PyAny>,
        incoming: Bound<'_, PyAny>,
        outgoing: Bound<'_, PyAny>,
        lends: bool,
    ) -> PyResult<Object> {
        let bound = |object: &Bound<'_, PyAny>, name: &str| -> PyResult<Slot> {
            Ok(Slot::new(Some(object.getattr(Fallible(name))?.into())))
        };
        Ok(Object {
            read: bound(object, "read")?,
            write: bound(object, "write")?,
            feed: bound(&incoming, "write")?,
            drain: bound(&outgoing, "read")?,
            incoming: Slot::new(Some(incoming.into())),
            outgoing: Slot::new(Some(outgoing.into())),
            lends,
            fed: Cell::new(0),
        })
    }

    pub(super) fn slots(&self) -> [&Slot; 6] {
        [&self.read, &self.write, &self.incoming, &self.feed, &self.outgoing, &self.drain]
    }

    pub(super) fn feed(&self, data: &[u8]) -> Result<(), Raised> {
        self.fed.set(self.fed.get().saturating_add(data.len()));
        let Some(feed) = self.feed.get() else { return Ok(()) };
        if data.len() < COPY || !self.lends {
            return feed.call_with([bytes_from(data)?.borrow()]).map(drop);
        }
        // SAFETY: the view is passed to MemoryBIO.write, which copies the data and keeps no reference to the view. The
        // memory outlives the call.
        let view = unsafe {
            Ref::from_owned(ffi::PyMemoryView_FromMemory(
                data.as_ptr().cast_mut().cast(),
                data.len() as ffi::Py_ssize_t,
                ffi::PyBUF_READ,
            ))
        };
        feed.call_with([view.ok_or(Raised)?.borrow()]).map(drop)
    }

    pub(super) fn decrypt(&self, plain: &mut Vec<u8>) -> Result<End, Raised> {
        self.fed.set(0);
        loop {
            if plain.capacity() - plain.len() < RECORD {
                return Ok(End::More);
            }
            let outcome = if self.lends { self.read_into(plain) } else { self.read_bytes(plain) };
            match outcome {
                Ok(0) => return Ok(End::Closed),
                Ok(_) if pending(&self.incoming) == 0 => return Ok(End::Drained),
                Ok(_) => {}
                Err(raised) => return Ok(read_error(raised)),
            }
        }
    }

    /// Reads one message, if at most one record of ciphertext has arrived: CPython then creates the `bytes` that the
    /// protocol gets. Returns `None` if more has arrived.
    #[inline(always)]
    pub(super) fn read_message(&self) -> Option<Result<Message, Raised>> {
        // A record's ciphertext is longer than its plaintext, so this is enough room. If only the end of a record has
        // arrived, the read may fill the room, and the message counts as a part.
        let size = self.fed.take();
        if size == 0 || size > RECORD || !self.lends {
            return None;
        }
        Some(self.read_up_to(size))
    }

    fn read_up_to(&self, size: usize) -> Result<Message, Raised> {
        let Some(read) = self.read.get() else { return Ok(Message::Nothing(End::Closed)) };
        let data = match read.call_with([integer(size as i64)?.borrow()]) {
            Ok(data) => data,
            Err(raised) => return Ok(Message::Nothing(read_error(raised))),
        };
        Ok(match data.exact_bytes().map_or(0, <[u8]>::len) {
            0 => Message::Nothing(End::Closed),
            count if count < size && pending(&self.incoming) == 0 => Message::Whole(data),
            _ => Message::Part(data),
        })
    }

    /// Calls `_SSLSocket.read(n, buffer)`, with the spare capacity of the vector as the buffer.
    fn read_into(&self, plain: &mut Vec<u8>) -> Result<usize, Raised> {
        let Some(read) = self.read.get() else { return Ok(0) };
        let room = plain.spare_capacity_mut();
        let size = room.len().min(RECORD) as ffi::Py_ssize_t;
        // SAFETY: a view of the vector's spare capacity, which outlives it: CPython's method keeps no reference to the
        // view.
        let view = unsafe {
            Ref::from_owned(ffi::PyMemoryView_FromMemory(room.as_mut_ptr().cast(), size, ffi::PyBUF_WRITE))
        };
        let view = view.ok_or(Raised)?;
        let count = read.call(&[integer(size as i64)?.borrow(), view.borrow()])?.to_index()?;
        if count < 0 || count > size {
            return Err(Exception::SystemError.raise("_SSLSocket.read() has returned a wrong size"));
        }
        // SAFETY: the method has written `count` bytes.
        unsafe { plain.set_len(plain.len() + count as usize) };
        Ok(count as usize)
    }

    /// Calls `read(n)` of an object that must not get a view of our memory.
    fn read_bytes(&self, plain: &mut Vec<u8>) -> Result<usize, Raised> {
        let Some(read) = self.read.get() else { return Ok(0) };
        let data = read.call_with([integer(RECORD as i64)?.borrow()])?;
        let view = crate::capi::buffer::Buffer::readable(&data)?;
        plain.extend_from_slice(view.as_slice());
        Ok(view.len())
    }

    /// Encrypts `data`, a bytes-like object.
    pub(super) fn encrypt(&self, data: &Ref) -> Result<Wrote, Raised> {
        let Some(write) = self.write.get() else { return Err(Raised) };
        let py = data.py();
        wrote(py, write.call_with([data.borrow()]).map(|count| count.bind(py)).map_err(PyErr::from))
    }
}

/// `bio.pending`, or 0 if that fails.
pub(super) fn pending(bio: &Slot) -> usize {
    let Some(bio) = bio.get() else { return 0 };
    let pending = bio.getattr(&imports().pending).and_then(|pending| pending.to_index());
    pending.map_or_else(
        |raised| {
            drop(raised.take());
            0
        },
        |pending| pending.max(0) as usize,
    )
}

/// The outcome of a read that has raised.
#[cold]
fn read_error(raised: Raised) -> End {
    let exception = raised.take();
    let py = exception.py();
    let error = PyErr::from_value(exception.bind(py));
    if is_again(py, &error) { End::Drained } else { End::Failed(exception) }
}
