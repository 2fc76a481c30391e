//! The smallest extension module: one async Rust function that Python awaits.

use std::time::Duration;

use pyo3::prelude::*;
use wakeloop::bridge::future_into_py;
use wakeloop::runtime::time::sleep;

/// Return a greeting after some milliseconds. Awaitable.
#[pyfunction]
fn greet_after(py: Python<'_>, milliseconds: u64, name: String) -> PyResult<Bound<'_, PyAny>> {
    future_into_py(py, async move {
        sleep(Duration::from_millis(milliseconds)).await;
        Ok(format!("Hello, {name}!"))
    })
}

#[pymodule(gil_used = true)]
fn hello(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(greet_after, module)?)
}
