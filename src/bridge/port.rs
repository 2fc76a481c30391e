//! The way back to a loop from threads without the GIL.
//!
//! wakeloop's own loop has an inbox. Any other asyncio loop watches the reading end of a socket pair with
//! `add_reader`: the sender queues its message and writes one byte, and the loop's own thread, which has the
//! GIL anyway, takes everything that came in. So no worker ever waits for the GIL, and a burst costs the
//! foreign loop one callback, where `call_soon_threadsafe` would cost a Handle and a GIL switch each.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::waiter::running_loop;
use crate::capi::error::{Outcome, exception, fetch, io_error, restore};
use crate::capi::{Fallible, Fatal, Raised};
use crate::event_loop::core::inbox::{Inbox, Message};
use crate::event_loop::core::process::{PARENTS_LOOP, forks};
use crate::event_loop::event_loop::EventLoop;

/// Sends messages to one loop. `Send` and `Sync`; outlives the loop, after which messages go nowhere.
#[derive(Clone, Debug)]
pub(crate) enum Port {
    Own(Arc<Inbox>),
    Foreign(Arc<Foreign>),
}

impl Port {
    /// The port of `event_loop`. A foreign loop gets one on first use. Called on the loop's own thread, while it runs.
    pub(crate) fn of(event_loop: &Bound<'_, PyAny>) -> PyResult<Port> {
        if let Ok(own) = event_loop.cast::<EventLoop>() {
            return Ok(Port::Own(own.get().core().inbox.clone()));
        }
        Ok(Port::Foreign(ForeignPort::of(event_loop)?.get().shared.clone()))
    }

    /// The port of the loop that runs on this thread.
    ///
    /// # Errors
    /// Raises RuntimeError if there is none.
    pub(crate) fn running(py: Python<'_>) -> Result<Port, Raised> {
        Port::of(&running_loop()?.bind(py)).map_err(|error| restore(py, error))
    }

    /// The loop awaits a job, as long as what this gives is alive, whose thread needs the GIL every now and then.
    pub(crate) fn await_job(&self) -> Awaited {
        Awaited(match self {
            Port::Own(inbox) => {
                inbox.await_job();
                Some(inbox.clone())
            }
            Port::Foreign(_) => None,
        })
    }

    /// Leaves a message. Needs no GIL and never blocks for long.
    pub(crate) fn send(&self, message: Message) {
        match self {
            Port::Own(inbox) => inbox.send(message),
            Port::Foreign(foreign) => foreign.send(message),
        }
    }
}

/// A job that a loop of ours awaits; dropped when it ends.
pub(crate) struct Awaited(Option<Arc<Inbox>>);

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(inbox) = &self.0 {
            inbox.end_job();
        }
    }
}

/// The queue of a foreign loop.
pub(crate) struct Foreign {
    messages: Mutex<Vec<Message>>,
    /// A byte is on its way, so that a burst writes one.
    signalled: AtomicBool,
    writer: UnixStream,
}

impl Foreign {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Message>> {
        // Pushing to a Vec leaves no half-way state behind a panic.
        self.messages.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn send(&self, message: Message) {
        self.lock().push(message);
        // Ordering: AcqRel, pairs with the swap in `drain`: whoever finds it false writes the byte.
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // Full or closed: then a byte is there already, or nobody reads any more.
            let _ = (&self.writer).write(&[1]);
        }
    }

    fn take(&self) -> Vec<Message> {
        // Ordering: AcqRel, pairs with the swap in `send`: a push after our look writes a new byte.
        self.signalled.swap(false, Ordering::AcqRel);
        std::mem::take(&mut *self.lock())
    }
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Foreign").field("signalled", &self.signalled).finish_non_exhaustive()
    }
}

/// The reading end, which a foreign loop watches.
#[pyclass(module = "wakeloop._core", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct ForeignPort {
    shared: Arc<Foreign>,
    reader: UnixStream,
    /// A forked child has its parent's loops, but shares their descriptors.
    forks: u32,
}

impl ForeignPort {
    /// The port of a loop. The loop's own reader callback keeps it alive, so closing the loop closes its descriptors.
    fn of<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, ForeignPort>> {
        /// By loop, weak references to ports.
        static PORTS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = event_loop.py();
        let made = || {
            Ok::<_, PyErr>(
                py.import(Fallible("weakref"))?.getattr(Fallible("WeakKeyDictionary"))?.call0()?.unbind(),
            )
        };
        let ports = PORTS.get_or_try_init(py, made)?.bind(py);
        let known = ports.call_method1(Fallible("get"), (event_loop,))?;
        if !known.is_none()
            && let Ok(port) = known.call0()?.cast_into::<ForeignPort>()
        {
            // The parent would get what is sent here, and what the loop watches is one set for both.
            if port.get().forks != forks() {
                return Err(exception::<PyRuntimeError>(PARENTS_LOOP));
            }
            return Ok(port);
        }
        let port = Bound::new(py, ForeignPort::new(py)?)?;
        event_loop.call_method1(
            Fallible("add_reader"),
            (port.call_method0(Fallible("fileno"))?, port.getattr(Fallible("drain"))?),
        )?;
        ports.set_item(event_loop, pyo3::types::PyWeakrefReference::new(&port)?)?;
        Ok(port)
    }

    fn new(py: Python<'_>) -> PyResult<ForeignPort> {
        let refused = |error: std::io::Error| io_error(py, &error);
        let (reader, writer) = UnixStream::pair().map_err(refused)?;
        reader.set_nonblocking(true).map_err(refused)?;
        writer.set_nonblocking(true).map_err(refused)?;
        let shared = Foreign { messages: Mutex::new(Vec::new()), signalled: AtomicBool::new(false), writer };
        Ok(ForeignPort { shared: Arc::new(shared), reader, forks: forks() })
    }
}

#[pymethods]
impl ForeignPort {
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
        for message in self.shared.take() {
            outcome.note(message());
        }
        outcome.finish().map_err(|Fatal| fetch(py))
    }
}

/// An error inside a message: there is nobody to raise it to.
pub(crate) fn report(py: Python<'_>, error: PyErr) -> Result<(), Fatal> {
    if error.is_instance_of::<pyo3::exceptions::PySystemExit>(py)
        || error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py)
    {
        error.restore(py);
        return Err(Fatal);
    }
    error.write_unraisable(py, None);
    Ok(())
}
