//! The state of a TLS connection that native code and asyncio's SSLProtocol share.
//!
//! asyncio's code reads and writes it under its own names (`_state`, `_app_reading_paused` and so on), through
//! the descriptors in [`super::python`], which come before the instance's dict.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::ffi;

use super::engine::Engine;
use crate::capi::call::method;
use crate::capi::error::{handling, take_exception};
use crate::capi::fallible::{interned, string_or_none};
use crate::capi::{Raised, Ref, Slot};
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
    pub(super) engine: UnsafeCell<Option<Engine>>,
    pub(super) state: Cell<State>,
    /// Plaintext that is not encrypted yet.
    queue: UnsafeCell<WriteBuffer>,
    /// How much of the queue the last write offered to OpenSSL, which could not go on before it hears from the
    /// peer: the next one must offer as much again.
    pub(super) offered: Cell<usize>,
    /// Plaintext that a buffered protocol has not taken yet.
    undelivered: UnsafeCell<Vec<u8>>,
    pub(super) outgoing_high: Mark,
    pub(super) outgoing_low: Mark,
    pub(super) incoming_high: Mark,
    pub(super) incoming_low: Mark,
    /// The application has paused reading.
    pub(super) app_reading_paused: Cell<bool>,
    /// The application was asked to pause writing.
    pub(super) app_writing_paused: Cell<bool>,
    /// We have paused reading of the stream transport.
    pub(super) ssl_reading_paused: Cell<bool>,
    /// The stream transport has asked us to pause writing.
    pub(super) ssl_writing_paused: Cell<bool>,
    /// Waits for the end of the turn to be flushed.
    pub(super) queued: Cell<bool>,
    /// OpenSSL is on the stack.
    pub(super) in_engine: Cell<bool>,
    /// The engine has failed: nothing more can be encrypted.
    pub(super) broken: Cell<bool>,
}

/// The class, and where a [`Connection`] lies in its instances.
static CLASS: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Called once, by the module's initialisation, with an instance and its inside.
pub(super) fn learn(object: *mut ffi::PyObject, connection: &Connection) {
    // Relaxed: before any connection can be made.
    OFFSET.store(std::ptr::from_ref(connection) as usize - object as usize, Ordering::Relaxed);
    // SAFETY: a live object. A type of ours lives for ever.
    CLASS.store(unsafe { ffi::Py_TYPE(object) }, Ordering::Relaxed);
}

/// Is `object` a TLS connection?
#[inline(always)]
pub(crate) fn is_connection(object: *mut ffi::PyObject) -> bool {
    // Relaxed: stored once, at import.
    let class = CLASS.load(Ordering::Relaxed);
    // SAFETY: live objects.
    unsafe { ffi::PyObject_TypeCheck(object, class) != 0 }
}

/// The inside of a TLS connection.
///
/// # Safety
/// [`is_connection`] holds, and the object outlives the result.
#[inline(always)]
pub(crate) unsafe fn connection_of<'a>(object: *mut ffi::PyObject) -> &'a Connection {
    // SAFETY: the caller's word. Relaxed: stored once, at import.
    unsafe { &*object.cast::<u8>().add(OFFSET.load(Ordering::Relaxed)).cast::<Connection>() }
}

impl Connection {
    pub(super) fn new() -> Connection {
        Connection {
            event_loop: Slot::empty(),
            sink: ProtocolSink::empty(),
            transport: Slot::empty(),
            ssl_object: Slot::empty(),
            engine: UnsafeCell::new(None),
            state: Cell::new(State::Unwrapped),
            queue: UnsafeCell::default(),
            offered: Cell::new(0),
            undelivered: UnsafeCell::default(),
            outgoing_high: Mark::new(usize::MAX),
            outgoing_low: Mark::new(0),
            incoming_high: Mark::new(usize::MAX),
            incoming_low: Mark::new(0),
            app_reading_paused: Cell::new(false),
            app_writing_paused: Cell::new(false),
            ssl_reading_paused: Cell::new(false),
            ssl_writing_paused: Cell::new(false),
            queued: Cell::new(false),
            in_engine: Cell::new(false),
            broken: Cell::new(false),
        }
    }

    /// The loop's inside; `None` before the connection was initialised.
    #[inline(always)]
    pub(super) fn core(&self) -> Option<&Core> {
        if self.event_loop.is_empty() {
            return None;
        }
        // SAFETY: the setter lets in loops of ours only.
        Some(unsafe { core_of(self.event_loop.as_ptr()) })
    }

    #[allow(
        clippy::mut_from_ref,
        reason = "GIL-guarded cell; the borrow ends before anything of Python is dropped"
    )]
    pub(super) fn queue(&self) -> &mut WriteBuffer {
        // SAFETY: see the reason above.
        unsafe { &mut *self.queue.get() }
    }

    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; no caller holds the borrow across Python code")]
    pub(super) fn undelivered(&self) -> &mut Vec<u8> {
        // SAFETY: see the reason above.
        unsafe { &mut *self.undelivered.get() }
    }

    /// The engine. It is set once, before the connection is used, and stays until the object dies.
    #[inline(always)]
    pub(super) fn engine(&self) -> Option<&Engine> {
        // SAFETY: GIL held; see `set_engine`.
        unsafe { (*self.engine.get()).as_ref() }
    }

    /// Sets the engine, once: whoever holds a borrow of it may rely on it.
    pub(super) fn set_engine(&self, engine: Engine) {
        // SAFETY: GIL held, and there is no engine that anyone could have borrowed.
        unsafe {
            if (*self.engine.get()).is_none() {
                *self.engine.get() = Some(engine);
            }
        }
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
        self.queue().len() + self.output_size()
    }

    /// What `_get_read_buffer_size` of asyncio counts.
    pub(super) fn unread(&self) -> usize {
        self.undelivered().len() + self.engine().map_or(0, Engine::input_size)
    }

    /// What is encrypted and not sent.
    pub(super) fn output_size(&self) -> usize {
        self.engine().map_or(0, Engine::output_size)
    }

    /// Has asyncio's code look at the application's flow control, if there is something to do with `output` encrypted
    /// and not sent.
    #[inline(always)]
    pub(super) fn control_app_writing(&self, object: &Ref, output: usize) -> Result<(), Raised> {
        let size = self.queue().len() + output;
        let paused = self.app_writing_paused.get();
        if (size >= self.outgoing_high.get() && !paused) || (size <= self.outgoing_low.get() && paused) {
            return call_named(object, "_control_app_writing", &[]);
        }
        Ok(())
    }

    /// The same for reading from the stream transport.
    #[inline(always)]
    pub(super) fn control_ssl_reading(&self, object: &Ref) -> Result<(), Raised> {
        let size = self.unread();
        let paused = self.ssl_reading_paused.get();
        if (size >= self.incoming_high.get() && !paused) || (size <= self.incoming_low.get() && paused) {
            return call_named(object, "_control_ssl_reading", &[]);
        }
        Ok(())
    }

    /// asyncio's `except Exception: self._fatal_error(...)`, with the error that is set. What is no `Exception`
    /// goes on to the caller.
    #[cold]
    pub(super) fn fatal_error(&self, object: &Ref, raised: Raised) -> Result<(), Raised> {
        let Raised = raised;
        let exception = take_exception();
        // asyncio sends what is written at once, so what was written before the failure is sent before anything else.
        super::write::send_last(object, self);
        // SAFETY: live objects.
        if unsafe { ffi::PyErr_GivenExceptionMatches(exception.as_ptr(), ffi::PyExc_Exception) } == 0 {
            crate::capi::error::raise(exception);
            return Err(Raised);
        }
        let message = string_or_none("Fatal error on SSL protocol");
        handling(&exception, || call_named(object, "_fatal_error", &[exception.as_ptr(), message.as_ptr()]))
    }

    /// The connection is lost: everything that still waits is dropped.
    pub(super) fn lost(&self) {
        let unsent = self.queue().take();
        drop(unsent);
        *self.undelivered() = Vec::new();
        self.offered.set(0);
        if let Some(engine) = self.engine() {
            engine.clear();
        }
    }
}

/// Calls one of asyncio's methods of the connection, by name.
#[cold]
pub(super) fn call_named(object: &Ref, name: &str, arguments: &[*mut ffi::PyObject]) -> Result<(), Raised> {
    let name = interned(name)?;
    method(object, name.as_ptr(), arguments).map(drop)
}
