//! `wakeloop.sleep`: a deadline on the runtime's timer heap.

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

use crate::bridge::awaitable::{Operation, Outcome};
use crate::runtime;

/// Seconds from Python as a duration. Negative is zero, as for asyncio.sleep.
///
/// # Errors
/// `ValueError` for NaN, `OverflowError` beyond what a duration holds (584 billion years) or infinity.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() {
        return Err(PyValueError::new_err("Invalid delay: NaN (not a number)"));
    }
    if seconds <= 0.0 {
        return Ok(Duration::ZERO);
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| PyOverflowError::new_err(error.to_string()))
}

/// sleep(delay, result=None)
/// --
///
/// Wait for delay seconds on the Rust runtime, then give result. Never early; a cancel takes the timer out
/// of the heap. Awaitable from any asyncio loop.
#[pyfunction]
#[pyo3(signature = (delay, result=None))]
pub(crate) fn sleep(delay: f64, result: Option<Py<PyAny>>) -> PyResult<Operation> {
    let delay = duration(delay)?;
    Ok(Operation::new("sleep", async move {
        runtime::time::sleep(delay).await;
        Outcome::Value(Box::new(move |py| Ok(result.unwrap_or_else(|| py.None()))))
    }))
}
