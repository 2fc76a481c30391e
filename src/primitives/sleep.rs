//! `wakeloop.sleep`: a deadline on the runtime's timer heap.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::error::exception;
use crate::runtime;

/// Longer waits than this (a hundred years) are for ever.
const LONGEST: f64 = 100.0 * 365.25 * 86_400.0;

/// Seconds from Python as a duration: negative is zero, as for asyncio.sleep; `None` is for ever.
///
/// # Errors
/// `ValueError` for NaN.
pub(crate) fn duration(seconds: f64) -> PyResult<Option<Duration>> {
    if seconds.is_nan() {
        return Err(exception::<PyValueError>("Invalid delay: NaN (not a number)"));
    }
    Ok((seconds <= LONGEST).then(|| Duration::from_secs_f64(seconds.max(0.0))))
}

/// Wait for delay seconds on the Rust runtime, then give result. Never early; a cancel takes the timer out
/// of the heap. Without a delay the other tasks have a turn, as with asyncio.sleep. Awaitable from any asyncio loop.
#[pyfunction]
#[pyo3(signature = (delay, result=None))]
pub(crate) fn sleep<'py>(
    py: Python<'py>,
    delay: f64,
    result: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let delay = duration(delay)?;
    if delay == Some(Duration::ZERO) {
        return Operation::next_turn(py, "sleep", result.map(Into::into));
    }
    let work = async move {
        match delay {
            Some(delay) => runtime::time::sleep(delay).await,
            None => std::future::pending().await,
        }
        Outcome::Nothing
    };
    Operation::with_result(py, "sleep", work, result.map(Into::into))
}
