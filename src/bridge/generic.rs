//! Runs pyo3-async-runtimes on wakeloop's runtime, for extension crates that use its `generic` module.
//!
//! ```ignore
//! use pyo3_async_runtimes::generic::future_into_py;
//! use wakeloop::bridge::generic::Wakeloop;
//!
//! #[pyfunction]
//! fn answer(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
//!     future_into_py::<Wakeloop, _, i32>(py, async { Ok(42) })
//! }
//! ```
//!
//! Its `TaskLocals` (event loop and context) are stored in a task local of wakeloop's runtime.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pyo3_async_runtimes::TaskLocals;
use pyo3_async_runtimes::generic::{ContextExt, JoinError, Runtime};

use super::runtime;
use crate::runtime as ours;

crate::task_local! {
    static LOCALS: TaskLocals;
}

/// The process's runtime, as a `Runtime` of pyo3-async-runtimes. It starts on first use.
#[derive(Clone, Copy, Debug)]
pub struct Wakeloop;

/// Why a task has no result.
#[derive(Debug)]
pub enum Failed {
    /// It was aborted, or it panicked.
    Task(ours::JoinError),
    /// The runtime could not be started, because threads or descriptors have run out.
    Start(std::io::Error),
}

impl JoinError for Failed {
    fn is_panic(&self) -> bool {
        matches!(self, Failed::Task(error) if error.is_panic())
    }

    /// The panic's payload, or the message of another failure.
    fn into_panic(self) -> Box<dyn Any + Send + 'static> {
        match self {
            Failed::Task(ours::JoinError::Panic(panic)) => panic.into_payload(),
            Failed::Task(error) => Box::new(error.to_string()),
            Failed::Start(error) => Box::new(error.to_string()),
        }
    }
}

/// Waits for a task.
#[derive(Debug)]
pub struct Joining(Result<ours::JoinHandle<()>, Option<std::io::Error>>);

impl Future for Joining {
    type Output = Result<(), Failed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(task) => Pin::new(task).poll(context).map_err(Failed::Task),
            // The error is gone if a caller polls again after `Ready`, against the contract of `Future`.
            Err(error) => error.take().map_or(Poll::Pending, |error| Poll::Ready(Err(Failed::Start(error)))),
        }
    }
}

impl Runtime for Wakeloop {
    type JoinError = Failed;
    type JoinHandle = Joining;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Joining {
        Joining(runtime::handle().map(|handle| handle.spawn(future)).map_err(Some))
    }

    fn spawn_blocking<F>(job: F) -> Joining
    where
        F: FnOnce() + Send + 'static,
    {
        Joining(runtime::handle().map(|handle| handle.spawn_blocking(job)).map_err(Some))
    }
}

impl ContextExt for Wakeloop {
    fn scope<F, R>(locals: TaskLocals, future: F) -> Pin<Box<dyn Future<Output = R> + Send>>
    where
        F: Future<Output = R> + Send + 'static,
    {
        Box::pin(LOCALS.scope(locals, future))
    }

    fn get_task_locals() -> Option<TaskLocals> {
        LOCALS.try_with(TaskLocals::clone).ok()
    }
}
