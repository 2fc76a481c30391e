//! `wakeloop.Admin`: opens and closes the window of this process.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::address::{self, Address, Opened};
use super::exposition::{self, Family, Sample};
use super::pages::Pages;
use super::readiness;
use super::server::Server;
use super::{labels, python, trace};
use crate::bridge::io_error::raise_io;
use crate::capi::Fallible;
use crate::capi::error::exception;
use crate::capi::fallible::{dict, py_tuple, try_list};
use crate::poison::unpoisoned;
use crate::watchdog::detached::{self, Reader};

/// The process's window. Locked with the GIL held, and only for a moment, so that no fork finds it locked.
static CURRENT: Mutex<Option<Arc<Server>>> = Mutex::new(None);

/// In a forked child: the parent's window is not its own.
pub(crate) fn forked() {
    labels::forked();
    trace::forked();
    python::forked();
    if let Some(server) = CURRENT.try_lock().ok().and_then(|mut current| current.take()) {
        server.forked();
        // Its thread does not exist here, and its runtime belongs to the parent.
        std::mem::forget(server);
    }
}

extern "C" fn exit() {
    if let Ok(Some(server)) = CURRENT.try_lock().as_deref() {
        server.exit();
    }
}

/// The window into this process: see `wakeloop.admin`. As a context manager it closes at the end of the block.
#[pyclass(module = "wakeloop", frozen)]
#[derive(Debug)]
pub(crate) struct Admin {
    server: Arc<Server>,
    limit: f64,
}

#[pymethods]
impl Admin {
    /// How long a turn may last in seconds, until `/livez` says that the process is not alive.
    #[getter]
    fn limit(&self) -> Fallible<f64> {
        Fallible(self.limit)
    }

    /// The addresses: `unix:PATH`, and `HOST:PORT` if there is a TCP address.
    #[getter]
    fn addresses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let text = |address: &Address| Ok(Fallible(address.to_string()).into_pyobject(py)?.into_any());
        try_list(py, self.server.addresses.iter().map(text))
    }

    /// Whether it answers: it was neither closed nor replaced, and this is no forked child of its process.
    fn is_open(&self) -> bool {
        self.server.is_open()
    }

    /// Close it, and wait until it has ended. May be called twice, and from any thread.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.server.stop());
    }

    /// The window itself, which is open already.
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// close().
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> Fallible<String> {
        let state = if self.is_open() { "open" } else { "closed" };
        Fallible(format!("<wakeloop.Admin limit={} {state}>", self.limit))
    }
}

/// The address of a window: see `wakeloop.admin`. The name of a host is looked up.
#[pyclass(module = "wakeloop._core", frozen)]
#[derive(Debug)]
pub(crate) struct AdminAddress(Option<Address>);

#[pymethods]
impl AdminAddress {
    #[new]
    fn new(py: Python<'_>, address: &[u8]) -> PyResult<AdminAddress> {
        let parsed = py.detach(|| address::parse(OsStr::from_bytes(address)));
        parsed.map(AdminAddress).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => exception::<PyValueError>(error.to_string()),
            _ => raise_io(&error).into(),
        })
    }
}

/// Open a window in place of the current one, which stays if the new one cannot be opened. The limit is positive. One
/// thread calls this at a time.
#[pyfunction]
#[pyo3(signature = (address, limit, /))]
pub(crate) fn open_admin(py: Python<'_>, address: &Bound<'_, AdminAddress>, limit: f64) -> PyResult<Admin> {
    static AT_EXIT: Once = Once::new();
    detached::prepare(py);
    let time = Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX).as_nanos();
    // With the GIL, because another thread may change the environment otherwise.
    let folder = address::folder();
    let pages = Pages::new(u64::try_from(time).unwrap_or(u64::MAX), Reader::open(), folder.clone());
    let (address, earlier) = (address.get().0.as_ref(), unpoisoned(CURRENT.lock()).clone());
    let opened = py.detach(|| {
        let sockets = earlier.as_ref().map_or(Ok(Opened::default()), |earlier| earlier.sockets());
        Server::start(address::open(address, folder, sockets?)?, pages)
    });
    let server = Arc::new(opened.map_err(|error| raise_io(&error))?);
    *unpoisoned(CURRENT.lock()) = Some(server.clone());
    py.detach(|| earlier.iter().for_each(|earlier| earlier.stop()));
    drop(earlier);
    // SAFETY: a function of this library, which is never unloaded.
    AT_EXIT.call_once(|| unsafe {
        libc::atexit(exit);
    });
    Ok(Admin { server, limit })
}

/// Wait until the window asks nothing of Python, which it does not do again. Called before the interpreter ends.
#[pyfunction]
pub(crate) fn finish_questions(py: Python<'_>) {
    py.detach(python::finish);
}

/// Set whether the program is ready, and the longest delay in seconds of a loop that is.
#[pyfunction]
#[pyo3(signature = (ready, limit, /))]
pub(crate) fn set_readiness(ready: bool, limit: f64) {
    // The cast saturates, so that infinity is no limit.
    readiness::set(ready, (limit * 1e9) as u64);
}

/// The metrics of this process in Prometheus' text format. The gauges of loops are as they were last counted.
#[pyfunction]
pub(crate) fn _metrics_text() -> Fallible<String> {
    Fallible(exposition::text(&exposition::families(false)))
}

/// The same for a library: name, kind, help, and for each sample its labels, and its number, or buckets and sum.
#[pyfunction]
pub(crate) fn _metric_families(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    try_list(py, exposition::families(false).iter().map(|family| describe(py, family)))
}

fn describe<'py>(py: Python<'py>, family: &Family) -> PyResult<Bound<'py, PyAny>> {
    let text = |text: &str| Ok::<_, PyErr>(Fallible(text).into_pyobject(py)?.into_any());
    let number = |number: f64| Ok::<_, PyErr>(Fallible(number).into_pyobject(py)?.into_any());
    let whole = |number: u64| Ok::<_, PyErr>(Fallible(number).into_pyobject(py)?.into_any());
    let samples = family.samples.iter().map(|(labels, sample)| {
        let named: Bound<'py, PyDict> = dict(py)?;
        for (name, value) in labels {
            named.set_item(Fallible(*name), Fallible(value.as_str()))?;
        }
        let value = match sample {
            Sample::Number(value) => whole(*value)?,
            Sample::Seconds(seconds) => number(*seconds)?,
            Sample::Histogram(histogram) => {
                let buckets = exposition::coarse(histogram).into_iter();
                let buckets = try_list(
                    py,
                    buckets
                        .map(|(bound, count)| Ok(py_tuple(py, [number(bound)?, whole(count)?])?.into_any())),
                )?;
                py_tuple(py, [buckets.into_any(), number(histogram.sum as f64 / 1e9)?])?.into_any()
            }
        };
        Ok(py_tuple(py, [named.into_any(), value])?.into_any())
    });
    let samples = try_list(py, samples)?.into_any();
    let metric = family.metric;
    Ok(py_tuple(py, [text(&family.name)?, text(metric.kind)?, text(metric.help)?, samples])?.into_any())
}
