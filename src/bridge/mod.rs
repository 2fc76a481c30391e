//! Where the two halves meet: a Rust future on the runtime, awaited by Python on an event loop.
//!
//! [`port`] is the way back to a loop: wakeloop's own by its inbox, any other asyncio loop by a descriptor
//! that it watches; [`loop_bound`] is what has to come home by it. [`awaitable`] is what Python awaits, [`waiter`] the task that does. [`runtime`] is the process's
//! one runtime, [`pool`] the threads for blocking calls of the loops themselves, [`promise`] a job's duty to report, [`panic`] what a panic on them becomes.
//! [`future_into_py`] and [`into_future`] are for other extension crates; `generic`, behind the feature `async-runtimes`, is for those
//! that use pyo3-async-runtimes.

pub(crate) mod awaitable;
pub(crate) mod budget;
mod future;
#[cfg(feature = "async-runtimes")]
pub mod generic;
pub(crate) mod io_error;
pub(crate) mod loop_bound;
pub(crate) mod panic;
pub(crate) mod pool;
pub(crate) mod port;
mod promise;
pub(crate) mod runtime;
pub(crate) mod waiter;

pub use future::{future_into_py, into_future};
pub use panic::RuntimePanic;
