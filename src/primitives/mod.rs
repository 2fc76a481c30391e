//! What Python awaits and Rust runs: operations on the runtime's workers, without the GIL.

pub(crate) mod blocking;
pub(crate) mod echo;
pub(crate) mod listener;
pub(crate) mod lookup;
pub(crate) mod metrics;
mod parcel;
pub(crate) mod sleep;
pub(crate) mod tcp_stream;
pub(crate) mod udp;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::error::warn;
use crate::transport::address;

/// ResourceWarning for what nobody closed. May be called while an exception is set.
fn warn_unclosed(what: &str) {
    // SAFETY: reading a static of the interpreter.
    warn(unsafe { ffi::PyExc_ResourceWarning }, &format!("unclosed {what}"), std::ptr::null_mut());
}

/// `__aenter__` of what is open already: gives it back.
fn entered<T: Send + 'static>(opened: Bound<'_, T>) -> PyResult<Bound<'_, PyAny>> {
    let (py, opened) = (opened.py(), opened.unbind());
    Operation::create(py, "__aenter__", async move { Outcome::value(move |_| Ok(opened.into_any())) })
}

/// `__aexit__` of what was just closed.
fn left(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    Operation::create(py, "__aexit__", async move { Outcome::Nothing })
}
