//! Lets `wakeloop.testing` stand in for functions of the runtime, on loops whose time it controls.
//!
//! While no testing loop runs, this is one load of a flag per call.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::capi::Fallible;
use crate::capi::fallible::py_tuple;

/// A testing loop runs in this process.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Says whether a testing loop runs. `wakeloop.testing` calls this.
#[pyfunction]
pub(super) fn _simulate(active: bool) {
    // Relaxed: nothing else is published with it, and the thread that runs the testing loop has written it itself.
    ACTIVE.store(active, Ordering::Relaxed);
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
