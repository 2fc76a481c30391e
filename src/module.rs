//! The Python module `wakeloop._core`.

use pyo3::exceptions::{PyImportError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyType};

use crate::bridge::awaitable;
use crate::bridge::loop_handle::ForeignInbox;
use crate::bridge::panic::RuntimePanic;
use crate::bridge::waiter::Heard;
use crate::capi;
use crate::capi::call::call0;
use crate::capi::error::exception;
use crate::capi::fallible::{dict, list};
use crate::capi::imports::imports;
use crate::capi::once::Once;
use crate::capi::{Fallible, Fatal, Raised, Ref, This, section};
use crate::compat::{self, clock, patches, sockets, transports};
use crate::event_loop::{calls, event_loop::EventLoop, executor_future, simulation, sock};
use crate::fork;
use crate::histogram;
use crate::kernel::core::probe::metrics::{ADDED, LoopFigures};
use crate::kernel::core::probe::registry;
use crate::kernel::core::{self, Core};
use crate::kernel::handle;
use crate::kernel::observe::{figures, labels, recording};
use crate::metrics::Table;
use crate::primitives::{self, lookup};
use crate::runtime::{Metrics, WorkerMetrics};
use crate::settings::{self, Value};
use crate::spin::{self, Setting};
use crate::transport::base::class;
use crate::transport::datagram::transport as datagram;
use crate::transport::stream::{self, accept, send_file};
use crate::transport::{connect, pipe, reader_feed, streams, tls};
use crate::watchdog::handle as watchdog;
use crate::window::handle as window;

/// Called by `os.register_at_fork` before every fork, in the thread that forks. Sends what the running loop has written:
/// the child would have a copy of it, and could send it a second time.
#[pyfunction]
fn _forking() -> PyResult<()> {
    let running = call0(&imports()._get_running_loop)?;
    let sent = running.with_native(|core: This<'_, Core>| core.flush_all());
    sent.map_or(Ok(()), |sent| sent.map_err(|Fatal| Raised.into()))
}

/// Called by `os.register_at_fork` in every child.
#[pyfunction]
fn _forked() {
    fork::forked();
    registry::forked();
    recording::forked();
    window::forked();
}

/// The table of each class of `wakeloop.metrics`: names, kinds and help.
#[pyfunction]
fn _metric_tables(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let tables = dict(py)?;
    let of_loops = LoopFigures::METRICS.iter().chain(&ADDED);
    tables.set_item(Fallible("LoopMetrics"), figures::describe(py, of_loops)?)?;
    tables.set_item(Fallible("RuntimeMetrics"), figures::describe(py, Metrics::METRICS.iter())?)?;
    tables.set_item(Fallible("WorkerMetrics"), figures::describe(py, WorkerMetrics::METRICS.iter())?)?;
    Ok(tables)
}

/// The bounds between the buckets of `wakeloop.Histogram`, in nanoseconds.
#[pyfunction]
fn _histogram_bounds(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let bounds: PyResult<Vec<_>> =
        histogram::bounds().map(|bound| Ok(Fallible(bound).into_pyobject(py)?.into_any())).collect();
    list(py, bounds?)
}

/// The environment variables by their names, None for those that are not set. Raises ValueError for the first that means
/// nothing.
#[pyfunction]
fn _settings(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = dict(py)?;
    for variable in settings::all() {
        let value = variable.read().map_err(|wrong| exception::<PyValueError>(wrong.to_string()))?;
        let value = match value {
            None => None,
            Some(Value::Switch(on)) => Some(PyBool::new(py, on).to_owned().into_any()),
            Some(Value::Word(word)) => Some(Fallible(word).into_pyobject(py)?.into_any()),
            Some(Value::Time(seconds)) => Some(Fallible(seconds).into_pyobject(py)?.into_any()),
            Some(Value::Number(number)) => Some(Fallible(number).into_pyobject(py)?.into_any()),
            Some(Value::Path(path)) => Some(Fallible(path.as_encoded_bytes()).into_pyobject(py)?.into_any()),
        };
        found.set_item(Fallible(variable.name), value)?;
    }
    Ok(found)
}

/// May one of the environment variables be set?
#[pyfunction]
fn _may_have_settings() -> bool {
    settings::may_be_set()
}

/// The seconds of a time, written as in an environment variable, or nothing.
#[pyfunction]
fn _seconds(text: &str) -> Option<f64> {
    settings::time(text)
}

/// How long a wait of a new loop, or of the runtime, spins at most, in nanoseconds; 0 if it never does.
#[pyfunction]
fn _spin_window() -> PyResult<u64> {
    let setting =
        Setting::from_environment().map_err(|wrong| exception::<PyValueError>(wrong.to_string()))?;
    Ok(spin::window(setting))
}

/// Does the interpreter ignore its environment (`python -E` and `-I`)? Then none of ours counts.
fn note_ignored_environment(py: Python<'_>) -> PyResult<()> {
    let flags = py.import("sys")?.getattr("flags")?;
    if flags.getattr("ignore_environment")?.is_truthy()? {
        settings::ignore();
    }
    Ok(())
}

/// Fails in a subinterpreter, before any object of it is stored: what this module imports, it keeps for the life of
/// the process. CPython refuses the import by itself only since 3.12, by the module's slot for that.
fn main_interpreter_only() -> PyResult<()> {
    // SAFETY: this thread is attached; both read pointers that live as long as this thread state.
    if unsafe { pyo3::ffi::PyInterpreterState_Get() == pyo3::ffi::PyInterpreterState_Main() } {
        return Ok(());
    }
    Err(exception::<PyImportError>("wakeloop does not support loading in subinterpreters"))
}

/// The module that was initialised first in this process.
static FIRST: Once<Ref> = Once::new();

/// Fills the module of a later import with what the first one has. The classes and what they rely on are the
/// process's: a second class would take the place of the first in native code, and live objects of the first, such as
/// open connections, would no longer be recognised.
fn share(first: &Ref, module: &Bound<'_, PyModule>) -> PyResult<()> {
    let first = first.bind(module.py());
    for (name, value) in first.cast::<PyModule>()?.dict() {
        if !module.dict().contains(&name)? {
            module.dict().set_item(name, value)?;
        }
    }
    Ok(())
}

/// The native half of wakeloop.
///
/// A free-threaded build runs it without the GIL: docs/explanation/free-threading.md says what guards its state.
#[pymodule(gil_used = false)]
pub(crate) fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    main_interpreter_only()?;
    if let Some(first) = FIRST.get() {
        return share(first, module);
    }
    note_ignored_environment(py)?;
    if !section::self_test(&module.as_any().clone().into()) {
        return Err(exception::<PyImportError>(
            "wakeloop does not know this interpreter's critical sections",
        ));
    }
    capi::call::find_functions();
    capi::imports::load(py, py.get_type::<RuntimePanic>().into_any())?;
    capi::function_class::make_type(py)?;
    capi::future::load(py)?;
    capi::recycle::context::init();
    handle::methods::make_types(py)?;
    clock::init(py, calls::native_timing())?;
    patches::init(py)?;
    sockets::init()?;
    sock::call::make_type(py)?;
    executor_future::make_type(py)?;

    // A sample, from which the place of the core in a loop is taken.
    let sample = Bound::new(py, EventLoop::bare(py)?)?;
    // SAFETY: the sample is an instance of the class, which keeps its core in itself.
    unsafe { core::init(sample.as_any(), sample.get().outside()) };
    _add_methods(&py.get_type::<EventLoop>())?;
    capi::recycle::futures::init(py, &sample.into_any().into());

    module.add("Socket", imports().socket.bind(py))?;
    module.add("Operation", awaitable::make_type(py)?)?;
    module.add_class::<EventLoop>()?;
    module.add("StreamTransport", stream::create::make_type(py)?)?;
    streams::make_call_type(py)?;
    module.add("StreamReader", streams::make_reader_type(py)?)?;
    module.add("StreamWriter", streams::make_writer_type(py)?)?;
    module.add("DatagramTransport", datagram::make_type(py)?)?;
    module.add("ReadPipeTransport", pipe::read::make_type(py)?)?;
    module.add("WritePipeTransport", pipe::write::make_type(py)?)?;
    module.add_function(wrap_pyfunction!(class::_warn_unclosed_with, module)?)?;
    transports::init(py)?;
    module.add("Unpatched", compat::python::make_type(py)?)?;
    module.add_function(wrap_pyfunction!(compat::python::unpatched, module)?)?;
    module.add_function(wrap_pyfunction!(compat::python::defined_class, module)?)?;
    module.add("TlsConnection", tls::python::make_type(py)?)?;
    module.add("SSLTransport", tls::transport::make_type(py)?)?;
    module.add_function(wrap_pyfunction!(tls::python::tls_problem, module)?)?;
    module.add("RuntimePanic", py.get_type::<RuntimePanic>())?;
    module.add_class::<ForeignInbox>()?;
    py.get_type::<Heard>();
    module.add_class::<stream::ClientCount>()?;
    module.add_class::<connect::Connecting>()?;
    // pyo3 would make this class at its first use, and panic if that fails. So it is made here.
    py.get_type::<accept::Listener>();
    primitives::add_to(module)?;
    module.add_function(wrap_pyfunction!(demo, module)?)?;
    module.add("__version__", env!("WAKELOOP_VERSION"))?;
    module.add("__build__", env!("WAKELOOP_BUILD"))?;
    module.add_function(wrap_pyfunction!(stream::create::make_stream, module)?)?;
    module.add_function(wrap_pyfunction!(send_file::send_file, module)?)?;
    module.add_function(wrap_pyfunction!(datagram::make_datagram, module)?)?;
    module.add_function(wrap_pyfunction!(pipe::read::make_read_pipe, module)?)?;
    module.add_function(wrap_pyfunction!(pipe::write::make_write_pipe, module)?)?;
    module.add_function(wrap_pyfunction!(accept::start_listener, module)?)?;
    module.add_function(wrap_pyfunction!(accept::accept_rest, module)?)?;
    module.add_function(wrap_pyfunction!(reader_feed::feed_readers, module)?)?;
    module.add_function(wrap_pyfunction!(streams::adopt_streams, module)?)?;
    module.add_function(wrap_pyfunction!(connect::connect, module)?)?;
    module.add_function(wrap_pyfunction!(executor_future::chain_jobs, module)?)?;
    module.add_class::<watchdog::Watchdog>()?;
    module.add_function(wrap_pyfunction!(watchdog::start_watchdog, module)?)?;
    module.add_function(wrap_pyfunction!(watchdog::stop_watchdog, module)?)?;
    module.add_class::<window::Admin>()?;
    module.add_class::<window::AdminAddress>()?;
    module.add_function(wrap_pyfunction!(window::open_admin, module)?)?;
    module.add_function(wrap_pyfunction!(window::finish_questions, module)?)?;
    module.add_function(wrap_pyfunction!(window::set_readiness, module)?)?;
    module.add_function(wrap_pyfunction!(window::_metrics_text, module)?)?;
    module.add_function(wrap_pyfunction!(window::_metric_families, module)?)?;
    module.add("_label", labels::variable()?.bind(py))?;
    module.add_function(wrap_pyfunction!(labels::_label_changed, module)?)?;
    module.add_function(wrap_pyfunction!(labels::_counts_labels, module)?)?;
    module.add_function(wrap_pyfunction!(labels::_run_labelled, module)?)?;
    module.add_class::<recording::PyRecording>()?;
    module.add_function(wrap_pyfunction!(recording::learn_task_fields, module)?)?;
    module.add_function(wrap_pyfunction!(_forked, module)?)?;
    module.add_function(wrap_pyfunction!(_forking, module)?)?;
    module.add_function(wrap_pyfunction!(_histogram_bounds, module)?)?;
    module.add_function(wrap_pyfunction!(_settings, module)?)?;
    module.add_function(wrap_pyfunction!(_may_have_settings, module)?)?;
    module.add_function(wrap_pyfunction!(_seconds, module)?)?;
    module.add_function(wrap_pyfunction!(_spin_window, module)?)?;
    module.add_function(wrap_pyfunction!(_metric_tables, module)?)?;
    module.add_function(wrap_pyfunction!(_init_c_caller, module)?)?;
    module.add_function(wrap_pyfunction!(_add_methods, module)?)?;
    module.add_function(wrap_pyfunction!(_context_scratch, module)?)?;
    module.add_function(wrap_pyfunction!(is_audited, module)?)?;
    FIRST.set(module.as_any().clone().into());
    Ok(())
}

/// An empty module in the same file. A free-threaded interpreter turns the GIL on before it runs this, as it does for any
/// extension that says nothing else. `wakeloop/_gil.py` loads it if WAKELOOP_GIL is 1.
#[pymodule(gil_used = true)]
fn _with_gil(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    main_interpreter_only()
}

/// Puts the loop's fast methods on `kind`. This is called for the native class, and again for the Python class that
/// inherits from it.
#[pyfunction]
fn _add_methods(kind: &Bound<'_, PyType>) -> PyResult<()> {
    if !kind.is_subclass_of::<EventLoop>()? {
        return Err(exception::<PyTypeError>("not a class of event loops"));
    }
    [calls::METHODS, executor_future::METHODS, sock::methods::METHODS, lookup::METHODS, simulation::METHODS]
        .into_iter()
        .try_for_each(|table| capi::class::add_methods(kind, table))
}

/// Is there an audit hook?
#[pyfunction]
fn is_audited() -> bool {
    capi::audit::has_hook()
}

/// Switches the scratch context off or on, for tests: callbacks must behave the same with and without it.
#[pyfunction]
fn _context_scratch(on: bool) -> bool {
    capi::recycle::context::enable(on)
}

/// Finds out how `_asyncio` calls `call_soon`. The package calls this once, when its Python half is loaded.
#[pyfunction]
fn _init_c_caller(py: Python<'_>) -> PyResult<()> {
    calls::init_c_caller(py)
}

/// Run the runtime's scheduling demo and print each of its events.
#[pyfunction]
fn demo(py: Python<'_>) -> PyResult<()> {
    py.detach(|| crate::runtime::run_demo(&mut std::io::stdout().lock()))?;
    Ok(())
}
