//! A protocol, and the way in which data is delivered to it.
//!
//! Stream and TLS transports use this. As in asyncio, the protocol's class decides when it is set in which way data is
//! delivered, and its methods are looked up for each call: a protocol may replace `data_received` at any time. Only a
//! TLS connection keeps the methods of a buffered protocol, as asyncio's does.

use std::cell::Cell;
use std::sync::OnceLock;

use pyo3::ffi;

use crate::capi::buffer::Buffer;
use crate::capi::error::unless_raised;
use crate::capi::imports::imports;
use crate::capi::inspect::{clear_error, integer};
use crate::capi::{Exception, Raised, Ref, Slot};
use crate::compat::InlineCache;
use crate::kernel::core::Core;
use crate::transport::reader_feed;

/// How data is delivered to the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// `data_received(bytes)`.
    #[default]
    Data,
    /// `get_buffer(sizehint)` and `buffer_updated(nbytes)`.
    Buffer,
    /// By [`NativeProtocol::receive`], without a call into Python.
    Native,
    /// By [`ProtocolSink::feed`] into the buffer of a StreamReader, if that is possible, or else
    /// `data_received(bytes)`.
    Reader,
}

/// The arguments are the protocol, the loop, the data, and the context for calls into Python.
type Receive = fn(&Ref, &Core, Vec<u8>, Option<&Ref>) -> Result<(), Raised>;

/// A class of protocols with a native function for received data: TLS connections.
#[derive(Debug)]
pub(crate) struct NativeProtocol {
    pub(crate) is_class_of: fn(&Ref) -> bool,
    /// Receives data, in a scratch vector of the loop.
    pub(crate) receive: Receive,
    /// Sends what it holds. Ignores errors.
    pub(crate) send_last: fn(&Ref),
    /// The same for `drain()` of asyncio's streams.
    pub(crate) drain: fn(&Ref),
    /// How many bytes it has not passed to the transport yet.
    pub(crate) unsent: fn(&Ref) -> usize,
}

static NATIVE: OnceLock<NativeProtocol> = OnceLock::new();

/// Registers the class. Called once, at import.
pub(crate) fn set_native_protocol(class: NativeProtocol) {
    let _ = NATIVE.set(class);
}

/// The protocol.
#[derive(Debug, Default)]
pub(crate) struct ProtocolSink {
    pub(crate) protocol: Slot,
    /// The methods of a buffered protocol, where they are kept.
    get_buffer: Slot,
    buffer_updated: Slot,
    /// The lookup of the method that is called with received data, and that of `get_buffer`.
    receiving: InlineCache,
    getting: InlineCache,
    delivery: Cell<Delivery>,
}

impl ProtocolSink {
    /// Replaces the protocol.
    pub(crate) fn set(&self, protocol: Ref) -> Result<(), Raised> {
        let delivery = if NATIVE.get().is_some_and(|class| (class.is_class_of)(&protocol)) {
            Delivery::Native
        } else if protocol.is_instance(&imports().buffered_protocol)? {
            Delivery::Buffer
        } else if reader_feed::is_fed(&protocol) {
            Delivery::Reader
        } else {
            Delivery::Data
        };
        self.delivery.set(delivery);
        self.get_buffer.clear();
        self.buffer_updated.clear();
        self.protocol.set(Some(protocol));
        Ok(())
    }

    /// The same, and keeps the methods of a buffered protocol.
    pub(crate) fn set_and_keep(&self, protocol: Ref) -> Result<(), Raised> {
        self.set(protocol.clone_ref())?;
        if self.delivery() == Delivery::Buffer {
            // A missing method is an error only when data arrives.
            self.get_buffer.set(optional(protocol.getattr(&imports().get_buffer))?);
            self.buffer_updated.set(optional(protocol.getattr(&imports().buffer_updated))?);
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn delivery(&self) -> Delivery {
        self.delivery.get()
    }

    /// `protocol.data_received(data)`.
    #[inline(always)]
    pub(crate) fn data_received(&self, data: &Ref) -> Result<(), Raised> {
        self.call(&self.receiving, &imports().data_received, data).map(drop)
    }

    #[inline(always)]
    fn call(&self, cache: &InlineCache, name: &Ref, argument: &Ref) -> Result<Ref, Raised> {
        cache.call(&self.protocol.get().unwrap_or_else(Ref::none), name, argument.borrow())
    }

    /// Calls a method, which may be kept.
    fn call_kept(
        &self,
        method: &Slot,
        cache: &InlineCache,
        name: &Ref,
        argument: &Ref,
    ) -> Result<Ref, Raised> {
        match method.get() {
            Some(method) => method.call_with([argument.borrow()]),
            None => self.call(cache, name, argument),
        }
    }

    /// Passes received data, in a scratch vector of the loop, to a protocol with [`Delivery::Native`].
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

    /// How many bytes a TLS connection has not passed to the transport yet.
    pub(crate) fn unsent(&self) -> usize {
        match (self.delivery(), NATIVE.get(), self.protocol.get()) {
            (Delivery::Native, Some(class), Some(protocol)) => (class.unsent)(&protocol),
            _ => 0,
        }
    }

    /// Sends what a TLS connection on this transport has still to send. Called when the transport is closed without the
    /// TLS connection, for example by `Server.close_clients()`: asyncio would have sent the data when it was written.
    pub(crate) fn send_last(&self) {
        if self.delivery() == Delivery::Native
            && let (Some(class), Some(protocol)) = (NATIVE.get(), self.protocol.get())
        {
            (class.send_last)(&protocol);
        }
    }

    /// The same for a TLS connection under asyncio's streams, whose `drain()` asks the transport whether it is closing.
    pub(crate) fn drain(&self) {
        if let (Some(class), Some(protocol)) = (NATIVE.get(), self.protocol.get()) {
            (class.drain)(&protocol);
        }
    }

    /// Feeds data to the StreamReader of a protocol with [`Delivery::Reader`], without a call into Python, in any
    /// context. Returns false, and does nothing, if [`ProtocolSink::data_received`] has to be called instead. An error
    /// is the one that `data_received` would raise.
    ///
    /// The data may be in the loop's receive buffer: it is copied before any Python code runs.
    #[inline(always)]
    pub(crate) fn feed(&self, core: &Core, data: &[u8]) -> Result<bool, Raised> {
        self.reader().map_or(Ok(false), |reader| reader_feed::feed(&reader, core, data))
    }

    /// The StreamReader of a protocol with [`Delivery::Reader`]; `None` if `data_received` has to be called.
    #[inline(always)]
    pub(crate) fn reader(&self) -> Option<Ref> {
        reader_feed::reader_of(&self.protocol.get()?)
    }

    /// The StreamReader that data is fed to without a call of `data_received`, if there is one.
    pub(crate) fn native_reader(&self) -> Option<Ref> {
        if self.delivery() == Delivery::Reader { self.reader() } else { None }
    }

    /// `protocol.get_buffer(hint)`. The result is not empty. The inner error is the exception of a read into something
    /// that is no writable buffer, and names `parameter`.
    pub(crate) fn get_buffer(&self, hint: isize, parameter: &str) -> Result<Result<Buffer, Ref>, Raised> {
        let target =
            self.call_kept(&self.get_buffer, &self.getting, &imports().get_buffer, &integer(hint as i64)?)?;
        match Buffer::writable(&target, parameter) {
            Ok(buffer) if buffer.len() == 0 => Err(empty_buffer()),
            Ok(buffer) => Ok(Ok(buffer)),
            Err(raised) => check_length(&target, raised).map(Err),
        }
    }

    /// `protocol.buffer_updated(count)`.
    pub(crate) fn buffer_updated(&self, count: isize) -> Result<(), Raised> {
        self.call_kept(
            &self.buffer_updated,
            &self.receiving,
            &imports().buffer_updated,
            &integer(count as i64)?,
        )
        .map(drop)
    }

    /// The method that is called with received data, if it is one of Python's, for the recorder.
    pub(crate) fn method(&self) -> Option<Ref> {
        let name = match self.delivery() {
            Delivery::Data => &imports().data_received,
            Delivery::Buffer => &imports().buffer_updated,
            Delivery::Native | Delivery::Reader => return None,
        };
        unless_raised(self.protocol.get()?.getattr(name))
    }

    /// Drops the protocol.
    pub(crate) fn clear(&self) {
        self.slots().into_iter().for_each(Slot::clear);
    }

    /// The protocol and its methods.
    pub(crate) fn slots(&self) -> [&Slot; 3] {
        [&self.protocol, &self.get_buffer, &self.buffer_updated]
    }
}

/// Turns an AttributeError into `None`.
fn optional(found: Result<Ref, Raised>) -> Result<Option<Ref>, Raised> {
    match found {
        Err(Raised) if Exception::AttributeError.is_set() => {
            clear_error();
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// Returns the error for an object that has no writable buffer. asyncio calls `len()` before it reads, so errors of
/// that take precedence.
#[cold]
fn check_length(target: &Ref, raised: Raised) -> Result<Ref, Raised> {
    let refused = raised.take();
    // SAFETY: a live object. With -1 an error is set, and stays set.
    match unsafe { ffi::PyObject_Size(target.as_ptr()) } {
        0 => Err(empty_buffer()),
        1.. => Ok(refused),
        _ => Err(Raised),
    }
}

#[cold]
fn empty_buffer() -> Raised {
    Exception::RuntimeError.raise("get_buffer() returned an empty buffer")
}
