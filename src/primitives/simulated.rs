//! Lets `wakeloop.testing` stand in for functions of the runtime, on loops whose time it controls.
//!
//! While no testing loop runs, this is one load of a flag per call.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::capi::Fallible;
use crate::capi::fallible::py_tuple;
use crate::clock::monotonic;

/// A testing loop runs in this process.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// How many runs of testing loops have begun.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// Says whether a testing loop runs. `wakeloop.testing` calls this. Returns the number of the run that begins.
#[pyfunction]
pub(super) fn _simulate(active: bool) -> u32 {
    // Relaxed: nothing else is published with it, and the thread that runs the testing loop has written it itself.
    ACTIVE.store(active, Ordering::Relaxed);
    if active { RUNS.fetch_add(1, Ordering::Relaxed) + 1 } else { runs() }
}

/// The number of the run of a testing loop that has begun last; 0 if none has.
pub(in crate::primitives) fn runs() -> u32 {
    // Relaxed: who makes an object in a run has seen that run's number, because the loop's thread has counted it.
    RUNS.load(Ordering::Relaxed)
}

/// The time of the monotonic clock. Tools that replace `time.monotonic` do not know this function.
#[pyfunction]
pub(super) fn _monotonic() -> f64 {
    monotonic()
}

/// Do the jobs of the loop that runs on this thread run inline?
pub(in crate::primitives) fn runs_inline(py: Python<'_>) -> PyResult<bool> {
    Ok(simulated(py, "runs_inline", || py_tuple(py, []), None)?.is_some())
}

/// What `wakeloop.testing._inline` returns for a call of the function `name`; nothing if the call is not made on a
/// testing loop.
pub(super) fn simulated<'py>(
    py: Python<'py>,
    name: &'static str,
    arguments: impl FnOnce() -> PyResult<Bound<'py, PyTuple>>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !ACTIVE.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let module = py.import(Fallible("wakeloop.testing._inline"))?;
    let made = module.getattr(Fallible(name))?.call(arguments()?, keywords)?;
    Ok(Some(made).filter(|made| !made.is_none()))
}
