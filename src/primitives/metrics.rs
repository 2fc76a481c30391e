//! `wakeloop.runtime_metrics` and `wakeloop.configure`.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::bridge::runtime;

/// runtime_metrics()
/// --
///
/// What the Rust runtime has done so far, as a dict: counts, and times in seconds. None as long as nothing
/// has started it.
#[pyfunction]
pub(crate) fn runtime_metrics(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(handle) = runtime::started() else { return Ok(None) };
    let metrics = handle.metrics();
    let dict = PyDict::new(py);
    for (name, value) in [
        ("workers", metrics.workers as u64),
        ("blocking_threads", metrics.blocking_threads as u64),
        ("tasks_spawned", metrics.tasks_spawned),
        ("tasks_completed", metrics.tasks_completed),
        ("tasks_live", metrics.tasks_live),
        ("polls", metrics.polls),
        ("lifo_hits", metrics.lifo_hits),
        ("steals", metrics.steals),
        ("injected", metrics.injected),
        ("parks", metrics.parks),
        ("wakeups", metrics.wakeups),
        ("timers_fired", metrics.timers_fired),
        ("timers_armed", metrics.timers_armed as u64),
        ("sockets", metrics.sockets as u64),
    ] {
        dict.set_item(name, value)?;
    }
    dict.set_item("busy_seconds", metrics.busy.as_secs_f64())?;
    dict.set_item("idle_seconds", metrics.idle.as_secs_f64())?;
    dict.set_item("uptime_seconds", metrics.uptime.as_secs_f64())?;
    Ok(Some(dict))
}

/// configure(*, workers)
/// --
///
/// Set how many worker threads the Rust runtime starts with (default: one per core, or WAKELOOP_WORKERS).
/// Raises RuntimeError once it runs, ValueError for less than one.
#[pyfunction]
#[pyo3(signature = (*, workers))]
pub(crate) fn configure(workers: usize) -> PyResult<()> {
    if workers == 0 {
        return Err(PyValueError::new_err("workers must be at least 1"));
    }
    if runtime::configure(workers) {
        Ok(())
    } else {
        Err(PyRuntimeError::new_err("the runtime is running already; configure it before its first use"))
    }
}
