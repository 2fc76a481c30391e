//! Lets `wakeloop.testing` stand in for functions of the runtime, on loops whose time it controls.
//!
//! While no testing loop runs, this is one load of a flag per call.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::capi::Fallible;

/// A testing loop runs in this process.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Says whether a testing loop runs. `wakeloop.testing` calls this.
#[pyfunction]
pub(super) fn _simulate(active: bool) {
    // Relaxed: written and read with the GIL held.
    ACTIVE.store(active, Ordering::Relaxed);
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
