//! The way to an event loop from threads that are not attached to the interpreter.
//!
//! wakeloop's own loop has an inbox. Any other asyncio loop watches one end of a socket pair with `add_reader`: the sender
//! queues its message and writes one byte, and the loop's own thread, which is attached anyway, takes all messages. So no
//! worker ever waits for the GIL, and a burst costs the foreign loop one callback, where `call_soon_threadsafe` would
//! cost a Handle and a switch of the GIL each.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::capi::call::call0;
use crate::capi::error::{Outcome, exception, raise_io};
use crate::capi::imports::imports;
use crate::capi::{Fallible, Fatal, Raised, Ref};
use crate::event_loop::core::inbox::{Inbox, Message};
use crate::event_loop::core::process::{PARENTS_LOOP, forks};
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::unraisable::unraisable;

/// Sends messages to one loop. `Send` and `Sync`; outlives the loop, after which messages go nowhere.
#[derive(Clone, Debug)]
pub(crate) enum LoopHandle {
    Own(Arc<Inbox>),
    Foreign(Arc<ForeignQueue>),
}

impl LoopHandle {
    /// The handle of `event_loop`. A foreign loop gets its inbox on first use. Called on the loop's own thread, while it
    /// runs.
    pub(crate) fn of(event_loop: &Bound<'_, PyAny>) -> PyResult<LoopHandle> {
        if let Ok(own) = event_loop.cast::<EventLoop>() {
            return Ok(LoopHandle::Own(own.get().core().inbox.clone()));
        }
        Ok(LoopHandle::Foreign(ForeignInbox::of(event_loop)?.get().queue.clone()))
    }

    /// The handle of the loop that runs on this thread.
    ///
    /// # Errors
    /// Raises RuntimeError if there is none.
    pub(crate) fn running(py: Python<'_>) -> Result<LoopHandle, Raised> {
        Ok(LoopHandle::of(&running_loop()?.bind(py))?)
    }

    /// Notes that the loop awaits a job whose thread needs the GIL every now and then, for as long as the result lives.
    pub(crate) fn await_job(&self) -> Awaited {
        Awaited(match self {
            LoopHandle::Own(inbox) => {
                inbox.await_job();
                Some(inbox.clone())
            }
            LoopHandle::Foreign(_) => None,
        })
    }

    /// Leaves a message. Needs no GIL, and blocks for no longer than a push to a list takes.
    pub(crate) fn send(&self, message: Message) {
        match self {
            LoopHandle::Own(inbox) => inbox.send(message),
            LoopHandle::Foreign(foreign) => foreign.send(message),
        }
    }
}

/// A job that a loop of ours awaits. Dropped when the job ends.
pub(crate) struct Awaited(Option<Arc<Inbox>>);

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(inbox) = &self.0 {
            inbox.end_job();
        }
    }
}

/// The messages for a foreign loop.
pub(crate) struct ForeignQueue {
    messages: Mutex<Vec<Message>>,
    /// A byte is on its way, so that a burst writes one.
    signalled: AtomicBool,
    writer: UnixStream,
}

impl ForeignQueue {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Message>> {
        // Pushing to a Vec leaves no half-way state behind a panic.
        self.messages.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn send(&self, message: Message) {
        self.lock().push(message);
        // Ordering: AcqRel, pairs with the swap in `take`: the sender that finds it false writes the byte.
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // It fails if the socket is full, when a byte is there already, or closed, when nobody reads any more.
            let _ = (&self.writer).write(&[1]);
        }
    }

    fn take(&self) -> Vec<Message> {
        // Ordering: AcqRel, pairs with the swap in `send`: a push after this swap writes a new byte.
        self.signalled.swap(false, Ordering::AcqRel);
        std::mem::take(&mut *self.lock())
    }
}

impl std::fmt::Debug for ForeignQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForeignQueue").field("signalled", &self.signalled).finish_non_exhaustive()
    }
}

/// The end of the socket pair that a foreign loop watches.
#[pyclass(module = "wakeloop._core", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct ForeignInbox {
    queue: Arc<ForeignQueue>,
    reader: UnixStream,
    /// A forked child has its parent's loops, but shares their descriptors.
    forks: u32,
}

impl ForeignInbox {
    /// The inbox of a loop. The loop's own reader callback keeps it alive, so closing the loop closes its descriptors.
    fn of<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, ForeignInbox>> {
        /// Weak references to the inboxes, by loop.
        static INBOXES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = event_loop.py();
        let made = || {
            Ok::<_, PyErr>(
                py.import(Fallible("weakref"))?.getattr(Fallible("WeakKeyDictionary"))?.call0()?.unbind(),
            )
        };
        let inboxes = INBOXES.get_or_try_init(py, made)?.bind(py);
        let known = inboxes.call_method1(Fallible("get"), (event_loop,))?;
        if !known.is_none()
            && let Ok(inbox) = known.call0()?.cast_into::<ForeignInbox>()
        {
            // The parent would get what is sent here: both processes watch the same descriptors.
            if inbox.get().forks != forks() {
                return Err(exception::<PyRuntimeError>(PARENTS_LOOP));
            }
            return Ok(inbox);
        }
        let inbox = Bound::new(py, ForeignInbox::new()?)?;
        event_loop.call_method1(
            Fallible("add_reader"),
            (inbox.call_method0(Fallible("fileno"))?, inbox.getattr(Fallible("drain"))?),
        )?;
        inboxes.set_item(event_loop, pyo3::types::PyWeakrefReference::new(&inbox)?)?;
        Ok(inbox)
    }

    fn new() -> PyResult<ForeignInbox> {
        let refused = |error: std::io::Error| raise_io(&error);
        let (reader, writer) = UnixStream::pair().map_err(refused)?;
        reader.set_nonblocking(true).map_err(refused)?;
        writer.set_nonblocking(true).map_err(refused)?;
        let queue =
            ForeignQueue { messages: Mutex::new(Vec::new()), signalled: AtomicBool::new(false), writer };
        Ok(ForeignInbox { queue: Arc::new(queue), reader, forks: forks() })
    }
}

#[pymethods]
impl ForeignInbox {
    /// What the loop watches.
    fn fileno(&self) -> i32 {
        self.reader.as_raw_fd()
    }

    /// The loop's reader callback: runs everything that came in.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        if self.forks != forks() {
            // The byte and the messages are the parent's.
            return Ok(());
        }
        let mut bytes = [0; 64];
        while matches!((&self.reader).read(&mut bytes), Ok(count) if count == bytes.len()) {}
        let mut outcome = Outcome::default();
        for message in self.queue.take() {
            outcome.note(message(py));
        }
        Ok(outcome.finish().map_err(Raised::from)?)
    }
}

/// Handles an error inside a message, which no code can catch: it is printed, unless it has to stop the loop.
pub(crate) fn report(error: impl Into<Raised>) -> Result<(), Fatal> {
    unraisable(&Ref::none(), error.into())
}

/// The loop that runs on this thread.
///
/// # Errors
/// Raises RuntimeError if there is none.
pub(crate) fn running_loop() -> Result<Ref, Raised> {
    call0(&imports().get_running_loop)
}
