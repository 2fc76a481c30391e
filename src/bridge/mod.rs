//! Connects the Rust runtime with Python's event loops: Python awaits Rust futures, and Rust awaits Python's.
//!
//! | file | contents |
//! |---|---|
//! | [`awaitable`] | `Operation`, the Python awaitable of a Rust future |
//! | [`waiter`] | wakes a Python task from any thread |
//! | [`loop_handle`] | sends messages to a loop from other threads: to wakeloop's by its inbox, to others by a descriptor |
//! | [`drop_on_loop`] | values that have to be dropped on a loop's thread |
//! | [`runtime`] | the process's one runtime |
//! | [`pool`] | threads for the loops' own blocking calls, such as name lookups |
//! | [`budget`] | the cooperative budget: how much tasks may do before they yield to the loop |
//! | [`promise`] | makes sure that a job reports an outcome |
//! | [`panic`](mod@panic), [`io_error`] | the exceptions for panics and errors of the runtime |
//!
//! [`future_into_py`] and [`into_future`] are for other extension crates. The module `generic`, behind the feature
//! `async-runtimes`, is for crates that use pyo3-async-runtimes.

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
