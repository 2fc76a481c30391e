//! `wakeloop.runtime_metrics` and `wakeloop.configure`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::numbers;
use crate::bridge::runtime;
use crate::capi::Fallible;
use crate::capi::error::exception;
use crate::capi::fallible::dict;

/// What the Rust runtime has done so far, as a dict: counts, and times in seconds. None if it has not started yet.
#[pyfunction]
pub(crate) fn runtime_metrics(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(handle) = runtime::started() else { return Ok(None) };
    let metrics = handle.metrics();
    let counts = dict(py)?;
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
        counts.set_item(Fallible(name), Fallible(value))?;
    }
    counts.set_item(Fallible("busy_seconds"), Fallible(metrics.busy.as_secs_f64()))?;
    counts.set_item(Fallible("idle_seconds"), Fallible(metrics.idle.as_secs_f64()))?;
    counts.set_item(Fallible("uptime_seconds"), Fallible(metrics.uptime.as_secs_f64()))?;
    Ok(Some(counts))
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
