//! `wakeloop.spawn_blocking`: a Python function on the runtime's blocking pool.

use std::ffi::CStr;
use std::ptr::null_mut;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

use super::simulated::simulated;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::bridge::drop_on_loop::DropOnLoop;
use crate::bridge::loop_handle::LoopHandle;
use crate::capi::call::{call_tuple, copy_current_context, guard, in_context};
use crate::capi::error::exception;
use crate::capi::fallible::py_tuple;
use crate::capi::threads::try_attach;
use crate::capi::{Raised, Ref};
use crate::kernel::observe::labels::{label_now, run_job};

/// A call that is to be made, with everything that it needs.
struct Call {
    function: Py<PyAny>,
    arguments: Py<PyTuple>,
    keywords: Option<Py<PyDict>>,
    context: Py<PyAny>,
}

impl Call {
    /// Makes the call, for the loop behind `home`.
    fn run(call: DropOnLoop<Call>, home: &LoopHandle) -> Outcome {
        let outcome = try_attach(|py| {
            let Some(Call { function, arguments, keywords, context }) = call.into_inner() else {
                return Outcome::Nothing;
            };
            let function = Ref::from(function.into_bound(py));
            let context = Ref::from(context.into_bound(py));
            let arguments = arguments.into_bound(py);
            let keywords = keywords.map(|keywords| keywords.into_bound(py));
            let result = in_context(&context, || {
                let keywords = keywords.as_ref().map_or(std::ptr::null_mut(), |keywords| keywords.as_ptr());
                // SAFETY: a tuple, and a dict or null.
                run_job(label_now, || unsafe { call_tuple(&function, arguments.as_ptr(), keywords) })
            });
            let result = result.map(|value| value.bind(py).unbind()).map_err(PyErr::from);
            // The task may have been cancelled meanwhile.
            let result = DropOnLoop::new(result, home);
            Outcome::value(move |py| result.into_inner().unwrap_or_else(|| Ok(py.None())))
        });
        outcome.unwrap_or_else(|reason| Outcome::Error(reason.into()))
    }
}

const DOC: &CStr = c"spawn_blocking(function, /, *args, **kwargs)
--

Call function(*args, **kwargs) on a thread of the runtime's blocking pool, in a copy of the context of the
await. Awaitable; gives what the function returns, or raises what it raises.

Cancelling the awaiting task takes the call out of the queue if it has not begun. A call that has begun runs to
its end; its result is dropped. Calls that still run when the interpreter exits are not waited for.";

/// Makes the function. CPython makes the tuple of its arguments, because pyo3 panics if there is no memory for it.
pub(super) fn make_function<'py>(module: &Bound<'py, PyModule>) -> PyResult<Bound<'py, PyCFunction>> {
    PyCFunction::new_with_keywords(module.py(), called, c"spawn_blocking", DOC, Some(module))
}

unsafe extern "C" fn called(
    _module: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the interpreter calls the function with a tuple, and with a dict or null. They live as long as the call.
        let (arguments, keywords) = unsafe {
            let py = Python::assume_attached();
            let arguments = Bound::from_borrowed_ptr(py, arguments).cast_into_unchecked::<PyTuple>();
            let keywords = Bound::from_borrowed_ptr_or_opt(py, keywords);
            (arguments, keywords.map(|keywords| keywords.cast_into_unchecked::<PyDict>()))
        };
        match with_arguments(&arguments, keywords) {
            Ok(operation) => operation.into_ptr(),
            Err(error) => {
                let Raised = error.into();
                null_mut()
            }
        }
    })
}

fn with_arguments<'py>(
    all: &Bound<'py, PyTuple>,
    keywords: Option<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    if all.is_empty() {
        let message = "spawn_blocking() missing 1 required positional argument: 'function'";
        return Err(exception::<PyTypeError>(message));
    }
    // SAFETY: a tuple; an owned reference to another one, or null with an error.
    let arguments = unsafe {
        let rest = ffi::PyTuple_GetSlice(all.as_ptr(), 1, ffi::Py_ssize_t::MAX);
        Bound::from_owned_ptr_or_err(all.py(), rest)?.cast_into_unchecked()
    };
    spawn_blocking(all.py(), all.get_item(0)?, arguments, keywords)
}

fn spawn_blocking<'py>(
    py: Python<'py>,
    function: Bound<'py, PyAny>,
    args: Bound<'py, PyTuple>,
    kwargs: Option<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    if !function.is_callable() {
        let kind = function.get_type().name()?.to_string();
        let message =
            format!("a callable object was expected by spawn_blocking(), got an instance of {kind}");
        return Err(exception::<PyTypeError>(message));
    }
    let call = || py_tuple(py, [function.clone(), args.clone().into_any()]);
    if let Some(simulated) = simulated(py, "spawn_blocking", call, kwargs.as_ref())? {
        return Ok(simulated);
    }
    let (function, arguments) = (function.unbind(), args.unbind());
    let keywords = kwargs.map(Bound::unbind);
    Operation::blocking(py, "spawn_blocking", move |py| {
        // This is the context of the await, not that of the call.
        let context = copy_current_context()?.bind(py).unbind();
        let home = LoopHandle::running(py)?;
        let call = DropOnLoop::new(Call { function, arguments, keywords, context }, &home);
        let awaited = home.await_job();
        Ok(move || {
            // The guard is kept until the call is done.
            let _awaited = awaited;
            Call::run(call, &home)
        })
    })
}
