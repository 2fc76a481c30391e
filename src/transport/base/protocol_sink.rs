//! A protocol, and the way in which it wants its data.
//!
//! Stream and TLS transports both hand what arrives to a protocol. Its methods are looked up once, when it
//! is set: looking them up costs more than many a protocol does per message.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use pyo3::ffi;

use crate::capi::buffer::Buffer;
use crate::capi::call::{call1, getattr};
use crate::capi::error::{raise, raise_message};
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::{Raised, Ref, Slot};
use crate::transport::reader_feed;
use crate::transport::tls::connection::is_connection;

/// How the protocol wants its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// `data_received(bytes)`.
    Data,
    /// `get_buffer(sizehint)` and `buffer_updated(nbytes)`.
    Buffer,
    /// The protocol is our own TLS connection, which takes ciphertext natively.
    Tls,
    /// Into the buffer of an asyncio.StreamReader, by [`Receiver::feed`], or else `data_received(bytes)`.
    Reader,
}

/// The protocol and its bound methods.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) protocol: Slot,
    /// `data_received` or `get_buffer`.
    function: Slot,
    /// `buffer_updated`.
    updated: Slot,
    delivery: Cell<Delivery>,
}

impl Receiver {
    pub(crate) const fn empty() -> Receiver {
        Receiver {
            protocol: Slot::empty(),
            function: Slot::empty(),
            updated: Slot::empty(),
            delivery: Cell::new(Delivery::Data),
        }
    }

    /// Takes a protocol in place of the one before.
    pub(crate) fn set(&self, protocol: Ref) -> Result<(), Raised> {
        let names = imports();
        let object = protocol.as_ptr();
        // A protocol without the method is an error when data arrives, not before, as in asyncio.
        let method = |name: &Ref| optional(getattr(object, name.as_ptr()));
        let (delivery, function, updated) = if is_connection(object) {
            (Delivery::Tls, None, None)
        } else {
            // SAFETY: live objects; -1 with an error set means failure.
            match unsafe { ffi::PyObject_IsInstance(object, names.buffered_protocol.as_ptr()) } {
                // Looked up where it is needed: whoever replaces the method of a reader's protocol is heard at once.
                0 if reader_feed::is_fed(object) => (Delivery::Reader, None, None),
                0 => (Delivery::Data, method(&names.data_received)?, None),
                1 => (Delivery::Buffer, method(&names.get_buffer)?, method(&names.buffer_updated)?),
                _ => return Err(Raised),
            }
        };
        self.delivery.set(delivery);
        self.function.set(function);
        self.updated.set(updated);
        self.protocol.set(Some(protocol));
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn delivery(&self) -> Delivery {
        self.delivery.get()
    }

    /// `protocol.data_received(data)`.
    #[inline(always)]
    pub(crate) fn data_received(&self, data: &Ref) -> Result<(), Raised> {
        match self.function.get() {
            Some(function) => call1(&function, data.as_ptr()).map(drop),
            // Not looked up so far, or no such method: the lookup raises what asyncio's would.
            None => self
                .missing(imports().data_received.as_ptr())
                .and_then(|function| call1(&function, data.as_ptr()))
                .map(drop),
        }
    }

    /// Gives data to the StreamReader behind a protocol of [`Delivery::Reader`], without a call of Python's and
    /// in no particular context. False if it has to go through [`Receiver::data_received`]: nothing has
    /// happened then. An error is one of `data_received`.
    ///
    /// The data may lie in the loop's receive buffer: it is copied before any Python code runs.
    #[inline(always)]
    pub(crate) fn feed(&self, data: &[u8]) -> Result<bool, Raised> {
        match self.reader() {
            Some(reader) => reader_feed::feed(&reader, data),
            None => Ok(false),
        }
    }

    /// The StreamReader behind a protocol of [`Delivery::Reader`], unless it is Python's business.
    #[inline(always)]
    pub(crate) fn reader(&self) -> Option<Ref> {
        reader_feed::reader_of(&self.protocol.get()?)
    }

    /// `protocol.get_buffer(hint)`: room for at least one byte.
    pub(crate) fn get_buffer(&self, hint: isize) -> Result<Buffer, Raised> {
        let hint = integer(hint as i64)?;
        let target = match self.function.get() {
            Some(function) => call1(&function, hint.as_ptr())?,
            None => call1(&self.missing(imports().get_buffer.as_ptr())?, hint.as_ptr())?,
        };
        let buffer = Buffer::writable(target.as_ptr(), "recv_into")
            .map_err(|raised| without_length(&target, raised))?;
        if buffer.len() == 0 {
            // SAFETY: reading a static of the interpreter.
            raise_message(unsafe { ffi::PyExc_RuntimeError }, "get_buffer() returned an empty buffer");
            return Err(Raised);
        }
        Ok(buffer)
    }

    /// `protocol.buffer_updated(count)`.
    pub(crate) fn buffer_updated(&self, count: isize) -> Result<(), Raised> {
        let count = integer(count as i64)?;
        match self.updated.get() {
            Some(updated) => call1(&updated, count.as_ptr()).map(drop),
            None => self
                .missing(imports().buffer_updated.as_ptr())
                .and_then(|updated| call1(&updated, count.as_ptr()))
                .map(drop),
        }
    }

    /// A method that the protocol did not have when it was set, or the AttributeError if it lacks it still.
    #[cold]
    fn missing(&self, name: *mut ffi::PyObject) -> Result<Ref, Raised> {
        getattr(self.protocol.get().unwrap_or_else(Ref::none).as_ptr(), name)
    }

    /// Lets the protocol go.
    pub(crate) fn clear(&self) {
        for slot in self.slots() {
            slot.clear();
        }
    }

    /// What is held, for the collector.
    pub(crate) fn slots(&self) -> [&Slot; 3] {
        [&self.protocol, &self.function, &self.updated]
    }

    /// # Safety
    /// Called by the collector with its own visitor.
    pub(crate) unsafe fn visit(&self, visit: ffi::visitproc, argument: *mut c_void) -> c_int {
        for slot in self.slots() {
            // SAFETY: the collector's own visitor.
            let result = unsafe { slot.visit(visit, argument) };
            if result != 0 {
                return result;
            }
        }
        0
    }
}

/// An attribute that may be missing; any other error stays one.
fn optional(found: Result<Ref, Raised>) -> Result<Option<Ref>, Raised> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(Raised) => {
            // SAFETY: an error is set; only AttributeError is cleared.
            unsafe {
                if ffi::PyErr_ExceptionMatches(ffi::PyExc_AttributeError) == 0 {
                    return Err(Raised);
                }
                ffi::PyErr_Clear();
            }
            Ok(None)
        }
    }
}

/// What is no buffer has failed; asyncio asks it for its length first.
#[cold]
fn without_length(target: &Ref, raised: Raised) -> Raised {
    let refused = raised.take();
    // SAFETY: a live object; -1 comes with an error, which stays.
    if unsafe { ffi::PyObject_Size(target.as_ptr()) } >= 0 {
        raise(refused);
    }
    Raised
}
