//! A sleep on tokio's timers, awaited from Python through pyo3-async-runtimes: how a Rust library offers one today.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_async_runtimes::tokio::future_into_py;

/// Wait for so many seconds. Awaitable.
#[pyfunction]
fn sleep(py: Python<'_>, seconds: f64) -> PyResult<Bound<'_, PyAny>> {
    let wait =
        Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
    future_into_py(py, async move {
        tokio::time::sleep(wait).await;
        Ok(())
    })
}

#[pymodule(gil_used = true)]
fn tokio_sleep(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sleep, module)?)
}
