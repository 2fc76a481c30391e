//! The state of a TLS connection that native code and asyncio's SSLProtocol share.
//!
//! asyncio's code reads and writes it under its own names (`_state`, `_app_reading_paused` and so on), through
//! the descriptors in [`super::python`], which come before the instance's dict.

use std::cell::{Cell, OnceCell, UnsafeCell};

use super::engine::Engine;
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::fallible::interned;
use crate::capi::native::{Dealloc, native_class};
use crate::capi::{Borrowed, Raised, Slot, This};
use crate::event_loop::core::{Core, core_of};
use crate::transport::base::protocol_sink::ProtocolSink;
use crate::transport::base::water_marks::Mark;
use crate::transport::base::write_buffer::WriteBuffer;
use crate::transport::stream::state::Stream;

/// asyncio's `SSLProtocolState`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unwrapped,
    Handshake,
    Wrapped,
    Flushing,
    Shutdown,
}

/// Whether the engine can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineUse {
    Idle,
    /// OpenSSL is on the stack.
    Busy,
    /// The engine has failed: nothing more can be encrypted.
    Broken,
}

/// The directions that are paused between two neighbours.
#[derive(Debug, Default)]
pub(super) struct Paused {
    pub(super) reading: Cell<bool>,
    pub(super) writing: Cell<bool>,
}

/// The native half of a TLS connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) event_loop: Slot,
    /// The application's protocol.
    pub(super) sink: ProtocolSink,
    /// The stream transport underneath, from its connection_made to its connection_lost.
    pub(super) transport: Slot,
    /// The `ssl.SSLObject`.
    pub(super) ssl_object: Slot,
    /// Set once, before the connection is used.
    pub(super) engine: OnceCell<Engine>,
    pub(super) state: Cell<State>,
    /// Plaintext that is not encrypted yet.
    pub(super) queue: WriteBuffer,
    /// How much of the queue the last write offered to OpenSSL, which could not go on before it hears from the
    /// peer: the next one must offer as much again.
    pub(super) offered: Cell<usize>,
    /// Plaintext that a buffered protocol has not taken yet.
    undelivered: UnsafeCell<Vec<u8>>,
    pub(super) outgoing_high: Mark,
    pub(super) outgoing_low: Mark,
    pub(super) incoming_high: Mark,
    pub(super) incoming_low: Mark,
    /// The application has paused reading, or was asked to pause writing.
    pub(super) app_paused: Paused,
    /// We have paused reading of the stream transport, or it has asked us to pause writing.
    pub(super) stream_paused: Paused,
    pub(super) engine_use: Cell<EngineUse>,
    /// Waits for the end of the turn to be flushed.
    pub(super) queued: Cell<bool>,
}

// `make_type` in `python.rs` builds the class, whose instances begin with the default fields.
native_class!(unsafe Connection);

impl Traverse for Connection {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slots([&self.event_loop, &self.transport, &self.ssl_object]);
        visitor.slots(self.sink.slots());
        if let Some(engine) = self.engine() {
            visitor.slots(engine.slots());
        }
    }

    /// The loop stays: methods need it, and its own clear breaks the cycle. So does the engine, whose objects refer to
    /// nothing but each other.
    fn clear(&self) {
        self.sink.clear();
        self.transport.clear();
        self.ssl_object.clear();
    }
}

impl Dealloc for Connection {}

impl Default for Connection {
    fn default() -> Connection {
        Connection {
            event_loop: Slot::empty(),
            sink: ProtocolSink::empty(),
            transport: Slot::empty(),
            ssl_object: Slot::empty(),
            engine: OnceCell::new(),
            state: Cell::new(State::Unwrapped),
            queue: WriteBuffer::default(),
            offered: Cell::new(0),
            undelivered: UnsafeCell::default(),
            outgoing_high: Mark::new(usize::MAX),
            outgoing_low: Mark::new(0),
            incoming_high: Mark::new(usize::MAX),
            incoming_low: Mark::new(0),
            app_paused: Paused::default(),
            stream_paused: Paused::default(),
            engine_use: Cell::new(EngineUse::Idle),
            queued: Cell::new(false),
        }
    }
}

impl Connection {
    /// The loop's inside; `None` before the connection was initialised.
    #[inline(always)]
    pub(super) fn core(&self) -> Option<&Core> {
        if self.event_loop.is_empty() {
            return None;
        }
        // SAFETY: the setter lets in loops of ours only.
        Some(unsafe { core_of(self.event_loop.as_ptr()) })
    }

    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; no caller holds the borrow across Python code")]
    pub(super) fn undelivered(&self) -> &mut Vec<u8> {
        // SAFETY: see the reason above.
        unsafe { &mut *self.undelivered.get() }
    }

    /// The engine. It stays until the object dies.
    #[inline(always)]
    pub(super) fn engine(&self) -> Option<&Engine> {
        self.engine.get()
    }

    /// Runs `body` in the context of the stream transport.
    pub(super) fn in_context<T>(&self, body: impl FnOnce() -> Result<T, Raised>) -> Result<T, Raised> {
        let transport = self.transport.get();
        match transport.as_ref().and_then(|transport| transport.downcast::<Stream>()) {
            Some(stream) => stream.base.in_context(body),
            None => body(),
        }
    }

    /// May data still be read?
    pub(super) fn reads(&self) -> bool {
        matches!(self.state.get(), State::Wrapped | State::Flushing)
    }

    /// What `_get_write_buffer_size` of asyncio counts.
    pub(super) fn unsent(&self) -> usize {
        self.queue.len() + self.output_size()
    }

    /// What `_get_read_buffer_size` of asyncio counts.
    pub(super) fn unread(&self) -> usize {
        self.undelivered().len() + self.engine().map_or(0, Engine::input_size)
    }

    /// What is encrypted and not sent.
    pub(super) fn output_size(&self) -> usize {
        self.engine().map_or(0, Engine::output_size)
    }

    /// Is OpenSSL on the stack? Then the connection neither reads nor writes.
    #[inline(always)]
    pub(super) fn in_engine(&self) -> bool {
        self.engine_use.get() == EngineUse::Busy
    }

    /// Runs OpenSSL.
    #[inline(always)]
    pub(super) fn use_engine<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.engine_use.replace(EngineUse::Busy);
        let outcome = work();
        self.engine_use.set(before);
        outcome
    }

    /// The connection is lost: everything that still waits is dropped.
    pub(super) fn lost(&self) {
        let unsent = self.queue.take();
        drop(unsent);
        *self.undelivered() = Vec::new();
        self.offered.set(0);
        if let Some(engine) = self.engine() {
            engine.clear();
        }
    }
}

/// Has asyncio's code look at the application's flow control, if there is something to do with `output` encrypted and
/// not sent.
#[inline(always)]
pub(super) fn control_app_writing(this: This<'_, Connection>, output: usize) -> Result<(), Raised> {
    let size = this.queue.len() + output;
    let paused = this.app_paused.writing.get();
    if (size >= this.outgoing_high.get() && !paused) || (size <= this.outgoing_low.get() && paused) {
        return call_named(this, "_control_app_writing", &[]);
    }
    Ok(())
}

/// The same for reading from the stream transport.
#[inline(always)]
pub(super) fn control_ssl_reading(this: This<'_, Connection>) -> Result<(), Raised> {
    let size = this.unread();
    let paused = this.stream_paused.reading.get();
    if (size >= this.incoming_high.get() && !paused) || (size <= this.incoming_low.get() && paused) {
        return call_named(this, "_control_ssl_reading", &[]);
    }
    Ok(())
}

/// Calls one of asyncio's methods of the connection, by name.
#[cold]
pub(super) fn call_named(
    this: This<'_, Connection>,
    name: &str,
    arguments: &[Borrowed<'_>],
) -> Result<(), Raised> {
    this.object().call_method(&interned(name)?, arguments).map(drop)
}
