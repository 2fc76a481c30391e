//! pyo3-async-runtimes on our runtime, for extension crates that are written against its `generic` module.
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
//! The task locals (event loop and context) that it carries along live in a thread-local that is set around
//! every poll of the future they belong to.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use pyo3_async_runtimes::TaskLocals;
use pyo3_async_runtimes::generic::{ContextExt, JoinError, Runtime};

use super::runtime;
use crate::runtime as ours;

thread_local! {
    static LOCALS: RefCell<Option<TaskLocals>> = const { RefCell::new(None) };
}

/// The process's runtime, as pyo3-async-runtimes knows runtimes. Starts on first use.
#[derive(Clone, Copy, Debug)]
pub struct Wakeloop;

/// Why a task has no result.
#[derive(Debug)]
pub enum Failed {
    /// It was aborted, or it panicked.
    Task(ours::JoinError),
    /// The runtime could not be started: no threads or no descriptors are left.
    Start(std::io::Error),
}

impl JoinError for Failed {
    fn is_panic(&self) -> bool {
        matches!(self, Failed::Task(error) if error.is_panic())
    }

    /// The panic's payload; for a failure of another kind, its message.
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
pub struct Joining(Option<Result<ours::JoinHandle<()>, std::io::Error>>);

impl Future for Joining {
    type Output = Result<(), Failed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.as_mut() {
            Some(Ok(task)) => Pin::new(task).poll(context).map(|done| done.map_err(Failed::Task)),
            _ => match self.0.take() {
                Some(Err(error)) => Poll::Ready(Err(Failed::Start(error))),
                // Polled again after it was ready, which no caller may do.
                _ => Poll::Pending,
            },
        }
    }
}

impl Runtime for Wakeloop {
    type JoinError = Failed;
    type JoinHandle = Joining;

    fn spawn<F>(future: F) -> Joining
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Joining(Some(runtime::handle().map(|handle| handle.spawn(future))))
    }

    fn spawn_blocking<F>(job: F) -> Joining
    where
        F: FnOnce() + Send + 'static,
    {
        Joining(Some(runtime::handle().map(|handle| handle.spawn_blocking(job))))
    }
}

impl ContextExt for Wakeloop {
    fn scope<F, R>(locals: TaskLocals, future: F) -> Pin<Box<dyn Future<Output = R> + Send>>
    where
        F: Future<Output = R> + Send + 'static,
    {
        Box::pin(Scoped { locals: Some(locals), future })
    }

    fn get_task_locals() -> Option<TaskLocals> {
        LOCALS.with_borrow(Clone::clone)
    }
}

pin_project! {
    /// A future whose polls see its task locals.
    struct Scoped<F> {
        // `None` only while a poll is under way: then they are in the thread-local.
        locals: Option<TaskLocals>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Put back whatever happens, also when the poll panics.
        let _scope = Scope::enter(this.locals);
        this.future.poll(context)
    }
}

/// While it lives, the thread-local holds `own`; then both are as before.
struct Scope<'a> {
    own: &'a mut Option<TaskLocals>,
}

impl<'a> Scope<'a> {
    fn enter(own: &'a mut Option<TaskLocals>) -> Scope<'a> {
        LOCALS.with_borrow_mut(|current| std::mem::swap(current, own));
        Scope { own }
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        LOCALS.with_borrow_mut(|current| std::mem::swap(current, self.own));
    }
}
