//! The state of a TLS connection, shared by native code and asyncio's SSLProtocol.
//!
//! asyncio's code reads and writes it under its own names (`_state`, `_app_reading_paused` and so on). These are data
//! descriptors in [`super::python`], so they take precedence over the instance's dict.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;

use pyo3::ffi;

use super::engine::Engine;
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::fallible::interned;
use crate::capi::native::{Class, Dealloc, Native};
use crate::capi::{Borrowed, Raised, Slot, This};
use crate::kernel::core::{Core, core_of};
use crate::transport::base::protocol_sink::ProtocolSink;
use crate::transport::base::water_marks::WaterMarks;
use crate::transport::base::write_buffer::WriteBuffer;
use crate::transport::stream::state::Stream;

/// asyncio's `SSLProtocolState`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TlsState {
    #[default]
    Unwrapped,
    Handshake,
    Wrapped,
    Flushing,
    Shutdown,
}

/// May the engine be used?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EngineUse {
    #[default]
    Idle,
    /// OpenSSL is on the stack.
    Busy,
    /// Encrypting has failed, so nothing more is encrypted.
    Broken,
}

/// The paused directions between two layers.
#[derive(Debug, Default)]
pub(super) struct Paused {
    pub(super) reading: Cell<bool>,
    pub(super) writing: Cell<bool>,
}

/// The native half of a TLS connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(super) event_loop: Slot,
    /// The application's protocol.
    pub(super) sink: ProtocolSink,
    /// The stream transport underneath, from `connection_made` until `connection_lost`.
    pub(super) transport: Slot,
    /// The `ssl.SSLObject`.
    pub(super) ssl_object: Slot,
    /// Set once, before the connection is used.
    pub(super) engine: OnceCell<Engine>,
    pub(super) state: Cell<TlsState>,
    /// Plaintext that is not encrypted yet.
    pub(super) queue: WriteBuffer,
    /// Plaintext that was not delivered to a buffered protocol yet.
    pub(super) undelivered: RefCell<VecDeque<u8>>,
    /// The error of the read behind the undelivered plaintext.
    pub(super) failure: Slot,
    pub(super) outgoing: WaterMarks,
    pub(super) incoming: WaterMarks,
    /// The application has paused reading, or was asked to pause writing.
    pub(super) app_paused: Paused,
    /// We have paused reading of the stream transport, or it has asked us to pause writing.
    pub(super) stream_paused: Paused,
    pub(super) engine_use: Cell<EngineUse>,
    /// The connection will be flushed at the end of the step.
    pub(super) queued: Cell<bool>,
}

// `make_type` in `python.rs` builds the class. Its instances begin with the default fields.
// SAFETY: see above.
unsafe impl Native for Connection {
    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    /// The loop. The setter of `_loop` sets it once, by asyncio's `__init__`; until then it is the object itself.
    #[inline(always)]
    fn guard(this: This<'_, Self>) -> *mut ffi::PyObject {
        let event_loop = this.event_loop.as_ptr();
        if event_loop.is_null() { this.object().as_ptr() } else { event_loop }
    }
}

impl Traverse for Connection {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slots([&self.event_loop, &self.transport, &self.ssl_object, &self.failure]);
        visitor.slots(self.sink.slots());
        visitor.slots(self.outgoing.slots());
        visitor.slots(self.incoming.slots());
        if let Some(engine) = self.engine() {
            visitor.slots(engine.slots());
        }
    }

    /// Keeps the loop: methods need it, and the clear of the loop breaks the cycle. Keeps the engine: its objects refer
    /// only to each other.
    fn clear(&self) {
        self.sink.clear();
        self.transport.clear();
        self.ssl_object.clear();
        self.failure.clear();
    }
}

impl Dealloc for Connection {}

impl Connection {
    /// The loop's core; `None` before the connection was initialised.
    #[inline(always)]
    pub(super) fn core(&self) -> Option<&Core> {
        if self.event_loop.is_empty() {
            return None;
        }
        // SAFETY: the setter of `_loop` accepts only our loops.
        Some(unsafe { core_of(self.event_loop.as_ptr()) })
    }

    /// Enters a state, of which the engine has to know.
    pub(super) fn enter(&self, state: TlsState) {
        self.state.set(state);
        match (state, self.engine()) {
            // SAFETY: `raw` owns the SSL; see `Native::decrypt`.
            (TlsState::Wrapped, Some(Engine::Native(native))) => unsafe {
                native.library.established(native.ssl, &native.io);
            },
            (TlsState::Shutdown, Some(Engine::Native(native))) => native.io.end_records(),
            _ => {}
        }
    }

    /// The engine. Once set, it stays until the object is deallocated.
    #[inline(always)]
    pub(super) fn engine(&self) -> Option<&Engine> {
        self.engine.get()
    }

    /// Asks the stream transport. False if there is none.
    #[inline(always)]
    pub(super) fn with_stream(&self, body: impl FnOnce(This<'_, Stream>) -> bool) -> bool {
        let transport = self.transport.get();
        transport.as_ref().and_then(|transport| transport.downcast::<Stream>()).is_some_and(body)
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
    pub(super) fn may_read(&self) -> bool {
        matches!(self.state.get(), TlsState::Wrapped | TlsState::Flushing)
    }

    /// The result of asyncio's `_get_write_buffer_size`.
    pub(super) fn unsent(&self) -> usize {
        self.queue.len() + self.output_size()
    }

    /// The result of asyncio's `_get_read_buffer_size`.
    pub(super) fn unread(&self) -> usize {
        // The borrow has ended when Python is asked.
        let undelivered = self.undelivered.borrow().len();
        undelivered + self.engine().map_or(0, Engine::input_size)
    }

    /// The number of encrypted bytes that are not sent yet.
    pub(super) fn output_size(&self) -> usize {
        self.engine().map_or(0, Engine::output_size)
    }

    /// Is OpenSSL on the stack? Then the connection neither reads nor writes.
    #[inline(always)]
    pub(super) fn in_engine(&self) -> bool {
        self.engine_use.get() == EngineUse::Busy
    }

    /// Runs `work`, which calls OpenSSL.
    #[inline(always)]
    pub(super) fn use_engine<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.engine_use.replace(EngineUse::Busy);
        let outcome = work();
        self.engine_use.set(before);
        outcome
    }

    /// The connection is lost. Drops all data that waits.
    pub(super) fn lost(&self) {
        drop(self.queue.take());
        self.undelivered.take();
        self.failure.clear();
        if let Some(Engine::Native(native)) = self.engine() {
            native.io.clear();
        }
    }
}

/// Calls asyncio's `_control_app_writing`, if it has to pause or resume the application. `output` is the number of
/// encrypted bytes that are not sent yet.
#[inline(always)]
pub(super) fn control_app_writing(this: This<'_, Connection>, output: usize) -> Result<(), Raised> {
    if !this.outgoing.are_crossed(this.queue.len() + output, this.app_paused.writing.get()) {
        return Ok(());
    }
    call_named(this, "_control_app_writing", &[])
}

/// Calls asyncio's `_control_ssl_reading`, if it has to pause or resume reading from the stream transport.
#[inline(always)]
pub(super) fn control_ssl_reading(this: This<'_, Connection>) -> Result<(), Raised> {
    if !this.incoming.are_crossed(this.unread(), this.stream_paused.reading.get()) {
        return Ok(());
    }
    call_named(this, "_control_ssl_reading", &[])
}

/// Calls one of asyncio's methods of the connection.
#[cold]
pub(super) fn call_named(
    this: This<'_, Connection>,
    name: &str,
    arguments: &[Borrowed<'_>],
) -> Result<(), Raised> {
    this.object().call_method(&interned(name)?, arguments).map(drop)
}
