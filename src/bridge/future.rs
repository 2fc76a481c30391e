//! Conversion between Rust futures and Python awaitables, for other extension crates: [`future_into_py`] and
//! [`into_future`].
//!
//! The signatures are those of pyo3-async-runtimes. The runtime is wakeloop's. A result is sent to the loop's inbox
//! without the GIL, and the loop takes results in batches, so no thread calls `call_soon_threadsafe`.
//!
//! **Two copies.** An extension crate that links this crate has a copy of it, separate from the one in the Python
//! package `wakeloop`. It has a runtime of its own, whose workers start with the first future, and settings of its own:
//! `wakeloop.configure` and `wakeloop.runtime_metrics` are for the package's copy. The copies share nothing. The
//! extension treats wakeloop's event loop like any other asyncio loop, and reaches it by a descriptor that the loop
//! watches.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use pyo3::BoundObject;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use super::awaitable::{self, Operation, Outcome};
use super::loop_handle::{LoopHandle, report, running_loop};
use super::panic::RuntimePanic;
use crate::capi;
use crate::capi::Fallible;
use crate::capi::fallible::dict;
use crate::fork::forked;
use crate::poison::unpoisoned;
use crate::runtime::sync::oneshot;
use crate::runtime::yield_now;

/// Turns a Rust future into a Python awaitable.
///
/// The awaitable behaves like a coroutine: the future starts when a task of any asyncio loop awaits it. It runs on the
/// workers of the runtime, without the GIL. Cancelling the awaiting task drops the future. An `Err` is raised
/// unchanged. A panic becomes the exception `RuntimePanic`, and the process continues.
///
/// ```ignore
/// #[pyfunction]
/// fn answer(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
///     wakeloop::bridge::future_into_py(py, async { Ok(42) })
/// }
/// ```
///
/// # Errors
/// The first call fails if one of the modules that it imports from Python's standard library is missing.
pub fn future_into_py<F, T>(py: Python<'_>, future: F) -> PyResult<Bound<'_, PyAny>>
where
    F: Future<Output = PyResult<T>> + Send + 'static,
    T: for<'py> IntoPyObject<'py> + Send + 'static,
{
    prepare(py)?;
    Operation::create(py, "future", async move {
        // The first poll runs on the loop's thread with the GIL held. A future from another crate may compute for long,
        // so it is first polled on a worker.
        yield_now().await;
        let result = future.await;
        Outcome::value(move |py| {
            let value = result?.into_pyobject(py).map_err(Into::into)?;
            Ok(value.into_any().unbind())
        })
    })
}

/// Turns a Python awaitable into a Rust future.
///
/// Call it on the thread of a running loop. It wraps the awaitable in a task of that loop, unless it is a task or
/// future already. The Rust future may be awaited on any thread. Dropping it before it is ready cancels the task.
///
/// # Errors
/// RuntimeError if no loop is running, TypeError if the object cannot be awaited.
pub fn into_future(
    awaitable: Bound<'_, PyAny>,
) -> PyResult<impl Future<Output = PyResult<Py<PyAny>>> + Send + use<>> {
    let py = awaitable.py();
    prepare(py)?;
    let event_loop = LoopHandle::of(&running_loop()?.bind(py))?;
    let task = py.import(Fallible("asyncio"))?.getattr(Fallible("ensure_future"))?.call1((awaitable,))?;
    let (sender, receiver) = oneshot::channel();
    let done = Done { sender: Mutex::new(Some(sender)) };
    task.call_method1(Fallible("add_done_callback"), (done,))?;
    Ok(Waiting { task: Some(task.unbind()), event_loop, receiver })
}

/// The done callback of a task that Rust waits for.
#[pyclass(frozen)]
struct Done {
    sender: Mutex<Option<oneshot::Sender<PyResult<Py<PyAny>>>>>,
}

#[pymethods]
impl Done {
    fn __call__(&self, task: &Bound<'_, PyAny>) {
        // The lock may be poisoned: taking the sender cannot panic half-way.
        let sender = unpoisoned(self.sender.lock()).take();
        if let Some(sender) = sender {
            // It fails if the Rust future was dropped.
            let _ = sender.send(task.call_method0(Fallible("result")).map(Bound::unbind));
        }
    }
}

/// Waits for a task of a loop.
struct Waiting {
    /// `None` once the task is done.
    task: Option<Py<PyAny>>,
    event_loop: LoopHandle,
    receiver: oneshot::Receiver<PyResult<Py<PyAny>>>,
}

impl Future for Waiting {
    type Output = PyResult<Py<PyAny>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let received = Pin::new(&mut self.receiver).poll(context);
        received.map(|received| {
            self.task = None;
            #[allow(clippy::disallowed_methods, reason = "there is no GIL here to make the error with")]
            received.unwrap_or_else(|_| Err(PyRuntimeError::new_err("the event loop has dropped the task")))
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        self.event_loop.send(Box::new(move |py| {
            task.bind(py).call_method0(Fallible("cancel")).map(drop).or_else(report)
        }));
    }
}

#[pyfunction]
fn after_fork() {
    forked();
}

/// Initialises this copy of the crate. The copy in the package `wakeloop` is initialised by its import.
fn prepare(py: Python<'_>) -> PyResult<()> {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    /// Held while one thread prepares. Others wait for it without being attached.
    static PREPARING: Mutex<()> = Mutex::new(());
    // Ordering: Acquire, pairs with the Release store below.
    if PREPARED.load(Ordering::Acquire) {
        return Ok(());
    }
    let _preparing = PREPARING.lock_py_attached(py);
    if !capi::imports::loaded() {
        capi::call::find_functions();
        capi::imports::load(py, py.get_type::<RuntimePanic>().into_any())?;
        capi::future::load(py)?;
        capi::function_class::make_type(py)?;
        awaitable::make_type(py)?;
        let options = dict(py)?;
        options.set_item(Fallible("after_in_child"), wrap_pyfunction!(after_fork, py)?)?;
        py.import(Fallible("os"))?.getattr(Fallible("register_at_fork"))?.call((), Some(&options))?;
    }
    // Ordering: Release, pairs with the Acquire load above.
    PREPARED.store(true, Ordering::Release);
    Ok(())
}
