//! `wakeloop.runtime_metrics` and `wakeloop.configure`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::numbers;
use crate::bridge::runtime;
use crate::capi::Fallible;
use crate::capi::error::exception;
use crate::capi::fallible::{dict, list, py_tuple};
use crate::runtime::metrics::{Histogram, WorkerMetrics};

/// The numbers of `wakeloop.RuntimeMetrics`, as a dict. None if the runtime has not started yet.
#[pyfunction]
#[pyo3(name = "_runtime_metrics")]
pub(crate) fn runtime_metrics(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(handle) = runtime::started() else { return Ok(None) };
    let metrics = handle.metrics();
    let numbers = dict_of(
        py,
        &[
            ("workers", metrics.workers as u64),
            ("tasks_spawned", metrics.tasks_spawned),
            ("tasks_completed", metrics.tasks_completed),
            ("tasks_live", metrics.tasks_live),
            ("polls", metrics.polls),
            ("lifo_hits", metrics.lifo_hits),
            ("steals", metrics.steals),
            ("injected", metrics.injected),
            ("parks", metrics.parks),
            ("wakeups", metrics.wakeups),
            ("injector_depth", metrics.injector_depth as u64),
            ("local_queue_depth", metrics.local_queue_depth as u64),
            ("spins", metrics.spins),
            ("spin_hits", metrics.spin_hits),
            ("timers_fired", metrics.timers_fired),
            ("timers_armed", metrics.timers_armed as u64),
            ("sockets", metrics.sockets as u64),
            ("blocking_threads", metrics.blocking_threads as u64),
            ("blocking_idle_threads", metrics.blocking_idle_threads as u64),
            ("blocking_queue_depth", metrics.blocking_queue_depth as u64),
            ("blocking_jobs", metrics.blocking_jobs),
        ],
    )?;
    for (name, time) in [
        ("busy_seconds", metrics.busy),
        ("idle_seconds", metrics.idle),
        ("uptime_seconds", metrics.uptime),
        ("spin_lost_seconds", metrics.spin_lost),
    ] {
        numbers.set_item(Fallible(name), Fallible(time.as_secs_f64()))?;
    }
    numbers.set_item(Fallible("delay"), histogram(py, &metrics.delay)?)?;
    numbers.set_item(Fallible("blocking_wait"), histogram(py, &metrics.blocking_wait)?)?;
    let workers: PyResult<Vec<_>> =
        metrics.per_worker.iter().map(|worker| Ok(of_worker(py, worker)?.into_any())).collect();
    numbers.set_item(Fallible("per_worker"), list(py, workers?)?)?;
    Ok(Some(numbers))
}

/// The numbers of `wakeloop.WorkerMetrics`.
fn of_worker<'py>(py: Python<'py>, worker: &WorkerMetrics) -> PyResult<Bound<'py, PyDict>> {
    let numbers = dict_of(
        py,
        &[
            ("polls", worker.polls),
            ("lifo_hits", worker.lifo_hits),
            ("steals", worker.steals),
            ("parks", worker.parks),
            ("wakeups", worker.wakeups),
            ("queue_depth", worker.queue_depth as u64),
        ],
    )?;
    numbers.set_item(Fallible("busy_seconds"), Fallible(worker.busy.as_secs_f64()))?;
    numbers.set_item(Fallible("idle_seconds"), Fallible(worker.idle.as_secs_f64()))?;
    numbers.set_item(Fallible("delay"), histogram(py, &worker.delay)?)?;
    Ok(numbers)
}

fn dict_of<'py>(py: Python<'py>, numbers: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let filled = dict(py)?;
    for (name, number) in numbers {
        filled.set_item(Fallible(*name), Fallible(*number))?;
    }
    Ok(filled)
}

/// The arguments of `wakeloop.Histogram._from_native`: counts, sum and maximum, in nanoseconds.
fn histogram<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyTuple>> {
    let number = |number: u64| Ok(Fallible(number).into_pyobject(py)?.into_any());
    let counts: PyResult<Vec<_>> = histogram.counts().iter().copied().map(number).collect();
    let [sum, max] = [histogram.sum(), histogram.max()].map(|time| number(time.as_nanos() as u64));
    py_tuple(py, [list(py, counts?)?.into_any(), sum?, max?])
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
