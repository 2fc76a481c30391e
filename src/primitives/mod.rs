//! What Python awaits and Rust runs: operations on the runtime's workers, without the GIL.

pub(crate) mod blocking;
pub(crate) mod echo;
pub(crate) mod listener;
mod listening;
pub(crate) mod lookup;
pub(crate) mod metrics;
mod open_socket;
mod parcel;
pub(crate) mod sleep;
pub(crate) mod tcp_stream;
pub(crate) mod udp;

use pyo3::prelude::*;

use crate::bridge::awaitable::{Operation, Outcome};
use crate::transport::stream::address;

/// `__aenter__` of what is open already: gives it back.
fn entered<T: Send + 'static>(opened: Bound<'_, T>) -> PyResult<Bound<'_, PyAny>> {
    let (py, opened) = (opened.py(), opened.unbind());
    Operation::create(py, "__aenter__", async move { Outcome::value(move |_| Ok(opened.into_any())) })
}

/// `__aexit__` of what was just closed.
fn left(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    Operation::create(py, "__aexit__", async move { Outcome::Nothing })
}
