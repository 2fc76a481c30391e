//! Where the two halves meet: a Rust future on the runtime, awaited by Python on an event loop.
//!
//! | file | what it has |
//! |---|---|
//! | [`awaitable`] | what Python awaits: an operation on the runtime |
//! | [`waiter`] | the task that waits for it, as the runtime sees it |
//! | [`loop_handle`] | the way to a loop from other threads: wakeloop's own by its inbox, any other by a descriptor |
//! | [`drop_on_loop`] | values that have to be dropped on a loop's thread |
//! | [`runtime`] | the process's one runtime |
//! | [`pool`] | threads for blocking calls of the loops themselves |
//! | [`budget`] | how much a task gets at once before its loop has a turn |
//! | [`promise`] | a job's duty to report its outcome |
//! | [`panic`], [`io_error`] | the exceptions that panics and failures of the runtime become |
//!
//! [`future_into_py`] and [`into_future`] are for other extension crates. `generic`, behind the feature `async-runtimes`,
//! is for those that use pyo3-async-runtimes.

pub(crate) mod awaitable;
pub(crate) mod budget;
pub(crate) mod drop_on_loop;
mod future;
#[cfg(feature = "async-runtimes")]
pub mod generic;
pub(crate) mod io_error;
pub(crate) mod loop_handle;
pub(crate) mod panic;
pub(crate) mod pool;
mod promise;
pub(crate) mod runtime;
pub(crate) mod waiter;

pub use future::{future_into_py, into_future};
pub use panic::RuntimePanic;
