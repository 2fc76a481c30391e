//! Names and objects of Python that the hot path needs, looked up once at import.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use super::fallible::{self, Fallible};
use super::object::Ref;
use super::once::Once;
use super::raised::Raised;

macro_rules! table {
    (
        names { $($name:ident),* $(,)? }
        objects { $($object:ident = $module:literal . $path:literal),* $(,)? }
        classes { $($class:ident = $home:literal . $of:literal),* $(,)? }
    ) => {
        /// Interned names and imported objects. Immutable after import, alive as long as the process.
        #[derive(Debug)]
        #[allow(non_snake_case, reason = "a field has the name that it holds")]
        pub(crate) struct Imports {
            $(pub(crate) $name: Ref,)*
            $(pub(crate) $object: Ref,)*
            $(pub(crate) $class: Ref,)*
            pub(crate) selector_event_loop: Ref,
            /// `socket.socket`, as `socket.py` defines it.
            pub(crate) socket: Ref,
            pub(crate) runtime_panic: Ref,
            /// asyncio's handle for other threads, which it has since 3.14; before, the plain one.
            pub(crate) thread_safe_handle_class: Ref,
            pub(crate) has_thread_safe_handle: bool,
            /// The keyword names with which futures and tasks are made.
            pub(crate) future_keywords: Keywords<1>,
            pub(crate) task_keywords: Keywords<3>,
            pub(crate) eager_task_keywords: Keywords<4>,
            /// An empty tuple.
            pub(crate) no_arguments: Ref,
        }

        impl Imports {
            fn load(py: Python<'_>, runtime_panic: Bound<'_, PyAny>) -> PyResult<Imports> {
                let events = py.import(Fallible("asyncio.events"))?;
                let has_thread_safe_handle = events.hasattr(Fallible("_ThreadSafeHandle"))?;
                let thread_safe_handle = if has_thread_safe_handle { "_ThreadSafeHandle" } else { "Handle" };
                Ok(Imports {
                    has_thread_safe_handle,
                    thread_safe_handle_class: defined_class(py, "asyncio.events", thread_safe_handle)?.into(),
                    $($name: fallible::interned(stringify!($name))?,)*
                    $($object: py.import(Fallible($module))?.getattr(Fallible($path))?.into(),)*
                    $($class: defined_class(py, $home, $of)?.into(),)*
                    selector_event_loop: selector_event_loop(py)?.into(),
                    socket: defined_class(py, "socket", "socket")?.into(),
                    runtime_panic: runtime_panic.into(),
                    future_keywords: Keywords::new(["loop"])?,
                    no_arguments: fallible::tuple([])?,
                    task_keywords: Keywords::new(["loop", "name", "context"])?,
                    eager_task_keywords: Keywords::new(["loop", "name", "context", "eager_start"])?,
                })
            }
        }
    };
}

table! {
    names {
        __aexit__, __name__, __self__, _active_count, _adopt_timers, _asyncio_future_blocking, _attach,
        _cancelled, _clients, _current_handle, _detach, _ensure_fd_no_transport, _process_events, _run,
        _run_once, _selector, _sockets, add_done_callback, buffer_updated, call_at, call_soon,
        call_soon_threadsafe, cancel, cancelled, close, connection_lost, connection_made, context,
        create_future, create_task, data_received, datagram_received, detach, done, eager_start,
        eof_received, error_received, family, fileno, get_buffer, get_loop, get_protocol, is_closing,
        max_size, name, pause_reading, pause_writing, pending, remove_done_callback, result,
        resume_reading, resume_writing, send, sendto, set, set_result, throw, time, wait,
    }
    objects {
        get_running_loop = "asyncio"."get_running_loop",
        _get_running_loop = "asyncio"."_get_running_loop",
        fileobj_to_fd = "selectors"."_fileobj_to_fd",
    }
    classes {
        buffered_protocol = "asyncio.protocols"."BufferedProtocol",
        buffered_random = "_io"."BufferedRandom",
        buffered_reader = "_io"."BufferedReader",
        buffered_writer = "_io"."BufferedWriter",
        file_io = "_io"."FileIO",
        future = "_asyncio"."Future",
        gaierror = "socket"."gaierror",
        handle_class = "asyncio.events"."Handle",
        incomplete_read = "asyncio.exceptions"."IncompleteReadError",
        io_base = "io"."IOBase",
        limit_overrun = "asyncio.exceptions"."LimitOverrunError",
        server_class = "asyncio.base_events"."Server",
        task = "_asyncio"."Task",
        timer_handle_class = "asyncio.events"."TimerHandle",
        transport_socket = "asyncio.trsock"."TransportSocket",
        unsupported_operation = "io"."UnsupportedOperation",
    }
}

/// The names of `N` keyword arguments, as a vectorcall takes them.
#[derive(Debug)]
pub(crate) struct Keywords<const N: usize>(Ref);

impl<const N: usize> Keywords<N> {
    fn new(names: [&str; N]) -> Result<Keywords<N>, Raised> {
        let names: Vec<_> = names.into_iter().map(fallible::interned).collect::<Result<_, _>>()?;
        fallible::tuple(names).map(Keywords)
    }

    /// The tuple of the `N` names.
    #[inline(always)]
    pub(super) fn tuple(&self) -> &Ref {
        &self.0
    }
}

/// The class that a module defines under a name, also if a program has put something else there before this import. If
/// that class is gone, what is there.
pub(crate) fn defined_class<'py>(py: Python<'py>, module: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let found = py.import(Fallible(module))?.getattr(Fallible(name))?;
    if is_definition(&found, module, name) {
        return Ok(found);
    }
    let subclasses = py.get_type::<PyType>().getattr(Fallible("__subclasses__"))?;
    let mut classes = vec![py.get_type::<PyAny>().into_any()];
    while let Some(class) = classes.pop() {
        if is_definition(&class, module, name) {
            return Ok(class);
        }
        classes.extend(subclasses.call1((class,))?.try_iter()?.collect::<PyResult<Vec<_>>>()?);
    }
    Ok(found)
}

/// `asyncio.SelectorEventLoop`, if the program has not put a function there.
fn selector_event_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let found = py.import(Fallible("asyncio"))?.getattr(Fallible("SelectorEventLoop"))?;
    if found.is_instance_of::<PyType>() {
        return Ok(found);
    }
    defined_class(py, "asyncio.unix_events", "_UnixSelectorEventLoop")
}

fn is_definition(object: &Bound<'_, PyAny>, module: &str, name: &str) -> bool {
    let is = |attribute, text| {
        object.getattr(Fallible(attribute)).and_then(|value| value.eq(Fallible(text))).unwrap_or(false)
    };
    object.is_instance_of::<PyType>() && is("__module__", module) && is("__qualname__", name)
}

static IMPORTS: Once<Imports> = Once::new();

/// Fills the table. The module's initialisation calls this before it makes any type.
pub(crate) fn load(py: Python<'_>, runtime_panic: Bound<'_, PyAny>) -> PyResult<()> {
    IMPORTS.set(Imports::load(py, runtime_panic)?);
    Ok(())
}

/// Whether the table is filled.
pub(crate) fn loaded() -> bool {
    IMPORTS.get().is_some()
}

/// The table.
#[inline(always)]
pub(crate) fn imports() -> &'static Imports {
    match IMPORTS.get() {
        Some(imports) => imports,
        // The module's initialisation fills the table before it publishes any type.
        None => unreachable!("the imports are loaded before any type is"),
    }
}

/// The namespace of `wakeloop._support`. At exit the interpreter clears its modules, and no import finds them then.
/// Objects that are freed after that still use their loop.
static SUPPORT: Once<Ref> = Once::new();

/// A function of `wakeloop._support`, where the cold paths live in Python.
pub(crate) fn support<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    if let Some(namespace) = SUPPORT.get() {
        let found = namespace.bind(py).cast_into::<PyDict>()?.get_item(Fallible(name))?;
        if let Some(function) = found {
            return Ok(function);
        }
    }
    let module = py.import(Fallible("wakeloop._support"))?;
    SUPPORT.set(module.getattr(Fallible("__dict__"))?.into());
    // What is loaded late is not in the namespace yet.
    module.getattr(Fallible(name))
}
