//! `wakeloop.Watchdog`: starts and stops the threads.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::detached;
use super::helper::Shared;
use super::monitor::Monitor;
use super::output::Output;
use crate::capi::Fallible;
use crate::capi::error::{exception, raise_errno, raise_os_error};
use crate::poison::unpoisoned;

/// The process's watchdog. Locked with the GIL held, and only for a moment, so that no fork finds it locked.
static CURRENT: Mutex<Option<Arc<Shared>>> = Mutex::new(None);

fn replace(current: Option<Arc<Shared>>) -> Option<Arc<Shared>> {
    std::mem::replace(&mut *unpoisoned(CURRENT.lock()), current)
}

/// The watchdog of this process: see `wakeloop.watchdog`. As a context manager it stops at the end of the block.
#[pyclass(module = "wakeloop", frozen)]
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    limit: f64,
}

#[pymethods]
impl Watchdog {
    /// The time in seconds after which a turn is reported.
    #[getter]
    fn limit(&self) -> Fallible<f64> {
        Fallible(self.limit)
    }

    /// Whether it runs: it was neither stopped nor replaced, and this is no forked child of its process.
    fn is_running(&self) -> bool {
        self.shared.is_running()
    }

    /// Stop it, and wait until it writes nothing more. May be called twice, and from any thread.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.shared.stop());
    }

    /// The watchdog itself, which runs already.
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// stop().
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: Bound<'_, PyTuple>) {
        self.stop(py);
    }

    fn __repr__(&self) -> Fallible<String> {
        let state = if self.is_running() { "running" } else { "stopped" };
        Fallible(format!("<wakeloop.Watchdog limit={} {state}>", self.limit))
    }
}

/// Start a watchdog in place of the current one. It writes to a duplicate of the descriptor; to standard error if that
/// is None. The limit is positive.
#[pyfunction]
#[pyo3(signature = (limit, fd, /))]
pub(crate) fn start_watchdog(py: Python<'_>, limit: f64, fd: Option<RawFd>) -> PyResult<Watchdog> {
    detached::prepare(py);
    let output = fd.map_or(Ok(Output::StandardError), duplicate)?;
    let shared = Arc::new(Shared::new());
    let time = Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX);
    let monitor = Monitor::new(&shared, time, output);
    if shared.spawn("wakeloop-watchd", |_| monitor.run()).is_err() {
        return Err(exception::<PyRuntimeError>("can't start new thread"));
    }
    if let Some(earlier) = replace(Some(shared.clone())) {
        py.detach(|| earlier.stop());
    }
    Ok(Watchdog { shared, limit })
}

fn duplicate(fd: RawFd) -> PyResult<Output> {
    if fd < 0 {
        return Err(raise_errno(libc::EBADF).into());
    }
    // SAFETY: the descriptor is used for this call only; one that is not open is an error.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    file.try_clone_to_owned().map(Output::File).map_err(|error| raise_os_error(&error).into())
}

/// Stop the watchdog of this process, if there is one.
#[pyfunction]
pub(crate) fn stop_watchdog(py: Python<'_>) {
    if let Some(current) = replace(None) {
        py.detach(|| current.stop());
    }
}
