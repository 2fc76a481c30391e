//! `wakeloop.runtime_metrics` and `wakeloop.configure`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::numbers;
use crate::bridge::runtime;
use crate::capi::Fallible;
use crate::capi::error::exception;
use crate::capi::fallible::try_list;
use crate::kernel::observe::figures;

/// The figures of `wakeloop.RuntimeMetrics`, as a dict. None if the runtime has not started yet.
#[pyfunction]
#[pyo3(name = "_runtime_metrics")]
pub(crate) fn runtime_metrics(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(handle) = runtime::started() else { return Ok(None) };
    let metrics = handle.metrics();
    let found = figures::to_dict(py, &metrics)?;
    let workers = metrics.per_worker.iter().map(|worker| Ok(figures::to_dict(py, worker)?.into_any()));
    found.set_item(Fallible("per_worker"), try_list(py, workers)?)?;
    Ok(Some(found))
}

/// Set how many worker threads the Rust runtime starts with (default: one per core, or WAKELOOP_WORKERS).
/// Raises RuntimeError once it runs, ValueError for less than one.
#[pyfunction]
#[pyo3(signature = (*, workers))]
pub(crate) fn configure(#[pyo3(from_py_with = numbers::integer)] workers: i64) -> PyResult<()> {
    if runtime::configure(numbers::workers(workers)?) {
        Ok(())
    } else {
        Err(exception::<PyRuntimeError>("the runtime is running already; configure it before its first use"))
    }
}
