//! Sends messages to an event loop from threads that are not attached to the interpreter.
//!
//! wakeloop's own loop has an inbox. Any other asyncio loop watches one end of a socket pair with `add_reader`: the
//! sender queues its message and writes one byte, and the loop's thread, which is attached anyway, runs all messages.
//! So no worker ever waits for the GIL, and a burst costs the foreign loop one callback. `call_soon_threadsafe` would
//! cost a Handle and a switch of the GIL per message.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::io_error::raise_io;
use crate::capi::call::call0;
use crate::capi::error::{Outcome, exception};
use crate::capi::imports::imports;
use crate::capi::{Fallible, Fatal, Raised, Ref};
use crate::event_loop::event_loop::EventLoop;
use crate::fork::Owner;
use crate::kernel::core::inbox::{Inbox, Message};
use crate::kernel::core::process::PARENTS_LOOP;
use crate::kernel::unraisable::unraisable;
use crate::poison::unpoisoned;

/// Sends messages to one loop. It is `Send` and `Sync`. It may outlive the loop; messages to a closed loop are dropped.
#[derive(Clone, Debug)]
pub(crate) enum LoopHandle {
    Own(Arc<Inbox>),
    Foreign(Arc<ForeignQueue>),
}

impl LoopHandle {
    /// The handle of `event_loop`. Call it on the loop's thread, while the loop runs: the first call for a foreign loop
    /// adds a reader to it.
    pub(crate) fn of(event_loop: &Bound<'_, PyAny>) -> PyResult<LoopHandle> {
        if let Ok(own) = event_loop.cast::<EventLoop>() {
            return Ok(LoopHandle::Own(own.get().outside().inbox.clone()));
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

    /// Counts a job whose thread will need the GIL. The loop then gives up the GIL more often; see `gil_fairness`. The
    /// returned guard ends the count.
    pub(crate) fn await_job(&self) -> Awaited {
        Awaited(match self {
            LoopHandle::Own(inbox) => {
                inbox.await_job();
                Some(inbox.clone())
            }
            LoopHandle::Foreign(_) => None,
        })
    }

    /// Sends a message. Needs no GIL, and blocks only while another thread adds or takes messages.
    pub(crate) fn send(&self, message: Message) {
        match self {
            LoopHandle::Own(inbox) => inbox.send(message),
            LoopHandle::Foreign(foreign) => foreign.send(message),
        }
    }

    /// Is the loop closed? Then messages to it are dropped. It may be closed at any time after this was asked.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            LoopHandle::Own(inbox) => inbox.is_closed(),
            LoopHandle::Foreign(foreign) => foreign.lock().is_none(),
        }
    }
}

/// Counts a job that one of our loops awaits, until it is dropped.
pub(crate) struct Awaited(Option<Arc<Inbox>>);

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(inbox) = &self.0 {
            inbox.end_job();
        }
    }
}

/// The loop of a task that waits for a queue or an event. A task of the same loop may end the wait, so it is no work
/// outside of the loop; see `event_loop::simulation`.
#[derive(Debug)]
pub(crate) struct Home(LoopHandle);

impl Home {
    pub(crate) fn of(event_loop: &Bound<'_, PyAny>) -> PyResult<Home> {
        let handle = LoopHandle::of(event_loop)?;
        if let LoopHandle::Own(inbox) = &handle {
            inbox.add_waiter();
        }
        Ok(Home(handle))
    }
}

impl std::ops::Deref for Home {
    type Target = LoopHandle;

    fn deref(&self) -> &LoopHandle {
        &self.0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let LoopHandle::Own(inbox) = &self.0 {
            inbox.remove_waiter();
        }
    }
}

/// The messages for a foreign loop.
pub(crate) struct ForeignQueue {
    /// `None` once the loop is closed. It would never run the messages, and they may hold references to it.
    messages: Mutex<Option<Vec<Message>>>,
    /// A byte was written and not read yet, so that a burst writes only one.
    signalled: AtomicBool,
    writer: UnixStream,
}

impl ForeignQueue {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<Message>>> {
        // The lock may be poisoned: pushing to a Vec cannot panic half-way.
        unpoisoned(self.messages.lock())
    }

    fn send(&self, message: Message) {
        // A message that is not taken is dropped after the lock, because it may notify others of that.
        match &mut *self.lock() {
            Some(messages) => messages.push(message),
            None => return,
        }
        // Ordering: AcqRel, pairs with the swap in `take`: the sender that finds it false writes the byte.
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // A failed write does not matter: either the socket is full, and the loop wakes anyway, or it is closed,
            // and so is the loop.
            let _ = (&self.writer).write(&[1]);
        }
    }

    fn take(&self) -> Vec<Message> {
        // Ordering: AcqRel, pairs with the swap in `send`: a push after this swap writes a new byte.
        self.signalled.swap(false, Ordering::AcqRel);
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn close(&self) {
        let messages = self.lock().take();
        drop(messages);
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
    /// A forked child shares the descriptors of its parent's loops.
    owner: Owner,
}

impl ForeignInbox {
    /// The inbox of a loop. The loop's reader callback keeps it alive, so closing the loop closes its descriptors.
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
            // The parent would receive the byte: both processes watch the same descriptors.
            if !inbox.get().owner.is_this_process() {
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
        let queue = ForeignQueue {
            messages: Mutex::new(Some(Vec::new())),
            signalled: AtomicBool::new(false),
            writer,
        };
        Ok(ForeignInbox { queue: Arc::new(queue), reader, owner: Owner::this_process() })
    }
}

/// The loop has dropped its reader callback: it is closed.
impl Drop for ForeignInbox {
    fn drop(&mut self) {
        if self.owner.is_this_process() {
            self.queue.close();
        }
    }
}

#[pymethods]
impl ForeignInbox {
    /// The descriptor that the loop watches.
    fn fileno(&self) -> i32 {
        self.reader.as_raw_fd()
    }

    /// The loop's reader callback: runs all messages.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        if !self.owner.is_this_process() {
            // The messages are for the parent's loop, and the byte is for the parent to read.
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

/// Handles an error in a message, where no Python code can catch it: it is printed, unless it has to stop the loop.
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
