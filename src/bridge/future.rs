//! Futures across the border, for other extension crates: [`future_into_py`] and [`into_future`].
//!
//! The signatures are those of pyo3-async-runtimes. What differs is underneath: the runtime is wakeloop's, and a
//! result goes back through the loop's inbox, in batches, without the GIL, without a thread's `call_soon_threadsafe`.
//!
//! **Two copies.** An extension crate that links this crate has its own copy of it, beside the one in Python's
//! package `wakeloop`: its own runtime, whose workers start with the first future, and its own settings
//! (`wakeloop.configure` and `wakeloop.runtime_metrics` speak of the package's). The copies share nothing; the
//! extension sees wakeloop's event loop as any asyncio loop and reaches it through a descriptor that the loop
//! watches.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use pyo3::BoundObject;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::awaitable::{self, Operation, Outcome};
use super::loop_handle::{LoopHandle, report, running_loop};
use super::panic::RuntimePanic;
use crate::capi;
use crate::capi::Fallible;
use crate::capi::fallible::dict;
use crate::event_loop::core::process::forked;
use crate::runtime::sync::oneshot;
use crate::runtime::yield_now;

/// A Rust future as something that Python awaits.
///
/// The result is a coroutine in all but name: the future starts when it is first awaited, by a task of any asyncio
/// loop, and runs on the workers of the runtime, without the GIL. Cancelling the awaiting task drops it. `Err` is
/// raised as it is; a panic becomes the exception `RuntimePanic`, and the process goes on.
///
/// ```ignore
/// #[pyfunction]
/// fn answer(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
///     wakeloop::bridge::future_into_py(py, async { Ok(42) })
/// }
/// ```
///
/// # Errors
/// When Python's own modules cannot be imported, at the first call.
pub fn future_into_py<F, T>(py: Python<'_>, future: F) -> PyResult<Bound<'_, PyAny>>
where
    F: Future<Output = PyResult<T>> + Send + 'static,
    T: for<'py> IntoPyObject<'py> + Send + 'static,
{
    prepare(py)?;
    Operation::create(py, "future", async move {
        // The first poll is on the loop's thread, attached. A future that others wrote may take its time, so it goes on
        // on a worker.
        yield_now().await;
        let result = future.await;
        Outcome::value(move |py| {
            let value = result?.into_pyobject(py).map_err(Into::into)?;
            Ok(value.into_any().unbind())
        })
    })
}

/// Something awaitable of Python's as a Rust future.
///
/// To be called on the thread of a running loop: the awaitable becomes a task of that loop (or is one already). The
/// future may be awaited anywhere. Dropping it before it is ready cancels the task.
///
/// # Errors
/// RuntimeError without a running loop, TypeError for what cannot be awaited.
pub fn into_future(
    awaitable: Bound<'_, PyAny>,
) -> PyResult<impl Future<Output = PyResult<Py<PyAny>>> + Send + use<>> {
    let py = awaitable.py();
    prepare(py)?;
    let event_loop = LoopHandle::of(&running_loop()?.bind(py))?;
    let task = py.import(Fallible("asyncio"))?.getattr(Fallible("ensure_future"))?.call1((awaitable,))?;
    let (sender, receiver) = oneshot::channel();
    let done = Done { sender: std::sync::Mutex::new(Some(sender)) };
    task.call_method1(Fallible("add_done_callback"), (done,))?;
    Ok(Waiting { task: Some(task.unbind()), event_loop, receiver })
}

/// The done callback of a task that Rust waits for.
#[pyclass(frozen)]
struct Done {
    sender: std::sync::Mutex<Option<oneshot::Sender<PyResult<Py<PyAny>>>>>,
}

#[pymethods]
impl Done {
    fn __call__(&self, task: &Bound<'_, PyAny>) {
        // Taking leaves no half-way state behind a panic.
        let sender = self.sender.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // Nobody may be interested any more.
            let _ = sender.send(task.call_method0(Fallible("result")).map(Bound::unbind));
        }
    }
}

/// Waits for a task of a loop.
struct Waiting {
    /// Taken when it is done.
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

/// Makes this copy of the crate ready, unless it is the one in the package, which was made ready by its import.
fn prepare(py: Python<'_>) -> PyResult<()> {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    // Relaxed: read and written under the GIL.
    if PREPARED.load(Ordering::Relaxed) {
        return Ok(());
    }
    if !capi::imports::loaded() {
        capi::call::find_functions();
        capi::imports::load(py, py.get_type::<RuntimePanic>().into_any())?;
        capi::future::load(py)?;
        awaitable::make_type(py)?;
        let options = dict(py)?;
        options.set_item(Fallible("after_in_child"), wrap_pyfunction!(after_fork, py)?)?;
        py.import(Fallible("os"))?.getattr(Fallible("register_at_fork"))?.call((), Some(&options))?;
    }
    PREPARED.store(true, Ordering::Relaxed);
    Ok(())
}
