//! What Python awaits: an operation on the runtime.
//!
//! A coroutine in all but name (`send`, `throw`, `close`, `__await__`), so tasks, `wait_for`, `gather` and
//! `create_task` take it. It starts when first awaited, as a coroutine does. The awaiting task sees an
//! ordinary asyncio future of its own loop, which the runtime completes through the loop's [`Port`].
//!
//! Cancelling the awaiting task arrives as `throw`: the Rust future is dropped, by abort. A Rust error
//! becomes the `OSError` subclass that Python would raise, a panic becomes `wakeloop.RuntimePanic`.

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::panic::RuntimePanic;
use super::port::{Port, report};
use super::runtime;
use crate::capi::Slot;
use crate::capi::call::panic_text;
use crate::capi::error::io_error;
use crate::runtime::AbortHandle;

/// Makes the result of an operation, on the loop's thread.
type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// What an operation came to, on its way to the loop.
pub(crate) enum Outcome {
    Value(Make),
    Error(io::Error),
    Panic(Box<dyn Any + Send>),
}

impl Outcome {
    fn into_result(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Outcome::Value(make) => make(py),
            Outcome::Error(error) => Err(io_error(py, &error)),
            Outcome::Panic(payload) => Err(RuntimePanic::new_err(panic_text(payload.as_ref()))),
        }
    }
}

/// The future of an operation.
pub(crate) type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// An operation that Python awaits once.
#[pyclass(module = "wakeloop._core", frozen, weakref)]
pub(crate) struct Operation {
    work: Cell<Option<Work>>,
    abort: Cell<Option<AbortHandle>>,
    target: Cell<Option<Arc<Target>>>,
    future: Slot,
    name: &'static str,
}

// SAFETY: used with the GIL held only (the module is `gil_used`); `Work` itself is `Send`, and is only moved
// out, never shared.
unsafe impl Send for Operation {}
// SAFETY: as above.
unsafe impl Sync for Operation {}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Operation {
    /// An operation whose `work` starts when it is first awaited.
    pub(crate) fn new(name: &'static str, work: impl Future<Output = Outcome> + Send + 'static) -> Operation {
        Operation {
            work: Cell::new(Some(Box::pin(work))),
            abort: Cell::new(None),
            target: Cell::new(None),
            future: Slot::empty(),
            name,
        }
    }

    /// Starts the work and gives the future that the awaiting task waits on.
    fn start<'py>(&self, py: Python<'py>, work: Work) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = py.import("asyncio")?.getattr("get_running_loop")?.call0()?;
        let port = Port::of(&event_loop)?;
        let future = event_loop.call_method0("create_future")?;
        let target = Arc::new(Target { port, future: Mutex::new(Some(future.clone().unbind())) });
        self.target.set(Some(target.clone()));
        let task = runtime::handle().map_err(|error| io_error(py, &error))?.spawn(async move {
            let outcome = Caught(work).await;
            complete(target, outcome);
        });
        self.abort.set(Some(task.abort_handle()));
        self.future.set(Some(future.clone().into()));
        Ok(future)
    }

    /// One step: `Ok(Some)` is the future to wait for, `Ok(None)` the end, with the result in the second place.
    fn step<'py>(&self, py: Python<'py>) -> PyResult<Result<Bound<'py, PyAny>, Py<PyAny>>> {
        if let Some(work) = self.work.take() {
            let future = self.start(py, work)?;
            future.setattr("_asyncio_future_blocking", true)?;
            return Ok(Ok(future));
        }
        let Some(future) = self.future.get() else {
            return Err(PyRuntimeError::new_err(format!("cannot reuse already awaited {}", self.name)));
        };
        let future = future.bind(py).clone();
        if !future.call_method0("done")?.is_truthy()? {
            // Woken by somebody else: wait on.
            future.setattr("_asyncio_future_blocking", true)?;
            return Ok(Ok(future));
        }
        self.finish();
        future.call_method0("result").map(|result| Err(result.unbind()))
    }

    /// Nothing is waited for any more; work that still runs is aborted.
    fn finish(&self) {
        drop(self.work.take());
        self.future.clear();
        if let Some(abort) = self.abort.take() {
            abort.abort();
        }
        if let Some(target) = self.target.take() {
            // Here, with the GIL, and not whenever a worker gets round to the abort.
            drop(target.take());
        }
    }
}

#[pymethods]
impl Operation {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.step(py)? {
            Ok(future) => Ok(future),
            Err(result) => Err(PyStopIteration::new_err((result,))),
        }
    }

    /// Take one step, as a coroutine's send does.
    fn send<'py>(&self, py: Python<'py>, _value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.__next__(py)
    }

    /// Abort the work and raise, as a coroutine's throw does.
    #[pyo3(signature = (kind, value=None, traceback=None))]
    fn throw(
        &self,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = traceback;
        self.finish();
        let exception = match value {
            Some(value) if value.is_instance_of::<pyo3::exceptions::PyBaseException>() => value,
            Some(value) => kind.call1((value,))?,
            None if kind.is_instance_of::<pyo3::exceptions::PyBaseException>() => kind,
            None => kind.call0()?,
        };
        Err(PyErr::from_value(exception))
    }

    /// Abort the work.
    fn close(&self) {
        self.finish();
    }

    fn __repr__(&self) -> String {
        format!("<wakeloop operation {}>", self.name)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let future = self.future.as_ptr();
        if !future.is_null() {
            // SAFETY: `Py` is a transparent non-null pointer, and the slot keeps the object alive.
            visit.call(unsafe { &*(&raw const future).cast::<Py<PyAny>>() })?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.finish();
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Where a finished operation reports. The future is taken by whoever comes first: the message that
/// completes it, or the operation when nobody waits any more.
struct Target {
    port: Port,
    future: Mutex<Option<Py<PyAny>>>,
}

impl Target {
    fn take(&self) -> Option<Py<PyAny>> {
        // Taking leaves no half-way state behind a panic.
        self.future.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Sends the outcome to the loop; called on a worker.
fn complete(target: Arc<Target>, outcome: Outcome) {
    let port = target.port.clone();
    port.send(Box::new(move || {
        let Some(future) = target.take() else { return Ok(()) };
        // SAFETY: messages are run by a loop's thread with the GIL held.
        let py = unsafe { Python::assume_attached() };
        deliver(py, future.bind(py), outcome).or_else(|error| report(py, error))
    }));
}

fn deliver(py: Python<'_>, future: &Bound<'_, PyAny>, outcome: Outcome) -> PyResult<()> {
    if future.call_method0("done")?.is_truthy()? {
        // Cancelled meanwhile.
        return Ok(());
    }
    match outcome.into_result(py) {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(py),))?,
    };
    Ok(())
}

/// A future whose panic is an outcome.
struct Caught(Work);

impl Future for Caught {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let work = self.0.as_mut();
        match std::panic::catch_unwind(AssertUnwindSafe(|| work.poll(context))) {
            Ok(poll) => poll,
            Err(payload) => Poll::Ready(Outcome::Panic(payload)),
        }
    }
}
