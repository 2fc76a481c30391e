//! A protocol, and the way in which it wants its data.
//!
//! Stream and TLS transports both hand what arrives to a protocol. Its methods are looked up once, when it is set, because
//! looking them up costs more than many a protocol does per message.

use std::cell::Cell;
use std::sync::OnceLock;

use pyo3::ffi;

use crate::capi::buffer::Buffer;
use crate::capi::error::raise;
use crate::capi::imports::imports;
use crate::capi::inspect::{clear_error, integer};
use crate::capi::{Exception, Raised, Ref, Slot};
use crate::event_loop::core::Core;
use crate::transport::reader_feed;

/// How the protocol wants its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// `data_received(bytes)`.
    Data,
    /// `get_buffer(sizehint)` and `buffer_updated(nbytes)`.
    Buffer,
    /// By the functions of [`NativeProtocol`], without a call into Python.
    Native,
    /// Into the buffer of an asyncio.StreamReader, by [`ProtocolSink::feed`], or else `data_received(bytes)`.
    Reader,
}

/// The protocol, the loop, the data, and the context to call Python in.
type Receive = fn(&Ref, &Core, Vec<u8>, Option<&Ref>) -> Result<(), Raised>;

/// A class of protocols that take what a socket gives natively: TLS connections.
#[derive(Debug)]
pub(crate) struct NativeProtocol {
    pub(crate) is_class_of: fn(&Ref) -> bool,
    /// Takes data, in a scratch vector of the loop's.
    pub(crate) receive: Receive,
    /// Sends what the protocol has kept back until the end of the turn, whatever comes of it.
    pub(crate) send_last: fn(&Ref),
}

static NATIVE: OnceLock<NativeProtocol> = OnceLock::new();

/// Makes the class known. Called once, at import.
pub(crate) fn set_native_protocol(class: NativeProtocol) {
    let _ = NATIVE.set(class);
}

/// The protocol and its bound methods.
#[derive(Debug)]
pub(crate) struct ProtocolSink {
    pub(crate) protocol: Slot,
    /// `data_received` or `get_buffer`.
    function: Slot,
    /// `buffer_updated`.
    updated: Slot,
    delivery: Cell<Delivery>,
}

impl ProtocolSink {
    pub(crate) const fn empty() -> ProtocolSink {
        ProtocolSink {
            protocol: Slot::empty(),
            function: Slot::empty(),
            updated: Slot::empty(),
            delivery: Cell::new(Delivery::Data),
        }
    }

    /// Takes a protocol in place of the one before.
    pub(crate) fn set(&self, protocol: Ref) -> Result<(), Raised> {
        let names = imports();
        // A protocol without the method is an error when data arrives, not before, as in asyncio.
        let method = |name: &Ref| optional(protocol.getattr(name));
        let (delivery, function, updated) =
            if NATIVE.get().is_some_and(|class| (class.is_class_of)(&protocol)) {
                (Delivery::Native, None, None)
            } else if protocol.is_instance(&names.buffered_protocol)? {
                (Delivery::Buffer, method(&names.get_buffer)?, method(&names.buffer_updated)?)
            } else if reader_feed::is_fed(&protocol) {
                // Looked up where it is needed, so that a method that replaces it counts at once.
                (Delivery::Reader, None, None)
            } else {
                (Delivery::Data, method(&names.data_received)?, None)
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
        self.call(&self.function, &imports().data_received, data).map(drop)
    }

    /// Calls a method that was looked up when the protocol was set. One that it did not have then is looked up now, which
    /// raises what asyncio's lookup would.
    #[inline(always)]
    fn call(&self, method: &Slot, name: &Ref, argument: &Ref) -> Result<Ref, Raised> {
        let method = match method.get() {
            Some(method) => method,
            None => self.protocol.get().unwrap_or_else(Ref::none).getattr(name)?,
        };
        method.call_with([argument.borrow()])
    }

    /// Gives received data, in a scratch vector of the loop's, to a protocol of [`Delivery::Native`].
    #[inline(always)]
    pub(crate) fn receive_natively(
        &self,
        protocol: &Ref,
        core: &Core,
        data: Vec<u8>,
        context: Option<&Ref>,
    ) -> Result<(), Raised> {
        NATIVE.get().map_or(Ok(()), |class| (class.receive)(protocol, core, data, context))
    }

    /// Sends what was written through a TLS connection on this transport, before an end that goes past that connection, as
    /// of a server that ends its clients. On asyncio it was sent when it was written.
    pub(crate) fn send_last(&self) {
        if self.delivery() == Delivery::Native
            && let (Some(class), Some(protocol)) = (NATIVE.get(), self.protocol.get())
        {
            (class.send_last)(&protocol);
        }
    }

    /// Gives data to the StreamReader behind a protocol of [`Delivery::Reader`], without a call into Python and in
    /// no particular context. False, before anything has happened, if [`ProtocolSink::data_received`] has to be called.
    /// An error is one of `data_received`.
    ///
    /// The data may lie in the loop's receive buffer: it is copied before any Python code runs.
    #[inline(always)]
    pub(crate) fn feed(&self, core: &Core, data: &[u8]) -> Result<bool, Raised> {
        match self.reader() {
            Some(reader) => reader_feed::feed(&reader, core, data),
            None => Ok(false),
        }
    }

    /// The StreamReader behind a protocol of [`Delivery::Reader`], unless Python code has to handle it.
    #[inline(always)]
    pub(crate) fn reader(&self) -> Option<Ref> {
        reader_feed::reader_of(&self.protocol.get()?)
    }

    /// `protocol.get_buffer(hint)`: room for at least one byte.
    pub(crate) fn get_buffer(&self, hint: isize) -> Result<Buffer, Raised> {
        let target = self.call(&self.function, &imports().get_buffer, &integer(hint as i64)?)?;
        let buffer =
            Buffer::writable(&target, "recv_into").map_err(|raised| without_length(&target, raised))?;
        if buffer.len() == 0 {
            return Err(Exception::RuntimeError.raise("get_buffer() returned an empty buffer"));
        }
        Ok(buffer)
    }

    /// `protocol.buffer_updated(count)`.
    pub(crate) fn buffer_updated(&self, count: isize) -> Result<(), Raised> {
        self.call(&self.updated, &imports().buffer_updated, &integer(count as i64)?).map(drop)
    }

    /// Drops the protocol.
    pub(crate) fn clear(&self) {
        self.slots().into_iter().for_each(Slot::clear);
    }

    /// Everything that is held.
    pub(crate) fn slots(&self) -> [&Slot; 3] {
        [&self.protocol, &self.function, &self.updated]
    }

    /// The methods alone.
    pub(crate) fn methods(&self) -> [&Slot; 2] {
        [&self.function, &self.updated]
    }
}

/// An attribute that may be missing; any other error stays one.
fn optional(found: Result<Ref, Raised>) -> Result<Option<Ref>, Raised> {
    match found {
        Err(Raised) if Exception::AttributeError.is_set() => {
            clear_error();
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// An object without a buffer has failed; asyncio asks it for its length first.
#[cold]
fn without_length(target: &Ref, raised: Raised) -> Raised {
    let refused = raised.take();
    // SAFETY: a live object; -1 comes with an error, which stays.
    if unsafe { ffi::PyObject_Size(target.as_ptr()) } >= 0 {
        raise(refused);
    }
    Raised
}
