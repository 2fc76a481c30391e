//! `wakeloop.sleep`: a deadline on the runtime's timer heap.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::simulated::simulated;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::error::exception;
use crate::capi::fallible::py_tuple;
use crate::capi::{Fallible, Ref};
use crate::runtime;

/// A wait of more than this (a hundred years) never ends.
const LONGEST: f64 = 100.0 * 365.25 * 86_400.0;

/// Seconds from Python as a duration. A negative number is zero, as for asyncio.sleep. `None` means forever.
///
/// # Errors
/// `ValueError` for NaN.
pub(crate) fn duration(seconds: f64) -> PyResult<Option<Duration>> {
    if seconds.is_nan() {
        return Err(exception::<PyValueError>("Invalid delay: NaN (not a number)"));
    }
    Ok((seconds <= LONGEST).then(|| Duration::from_secs_f64(seconds.max(0.0))))
}

/// Wait for delay seconds on the Rust runtime, then return result. It never ends early. A cancel removes the timer
/// from the heap. With a delay of 0 the other tasks run first, as with asyncio.sleep. Awaitable from any asyncio
/// loop.
#[pyfunction]
#[pyo3(signature = (delay, result=None))]
pub(crate) fn sleep<'py>(
    py: Python<'py>,
    delay: f64,
    result: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let seconds = delay;
    let delay = duration(delay)?;
    let arguments = || {
        let seconds = Fallible(seconds).into_pyobject(py)?.into_any();
        py_tuple(py, [seconds, result.clone().unwrap_or_else(|| Ref::none().bind(py))])
    };
    if let Some(simulated) = simulated(py, "sleep", arguments, None)? {
        return Ok(simulated);
    }
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
    Operation::sleeping(py, seconds, work, result.map(Into::into))
}
