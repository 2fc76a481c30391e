//! The error indicator: how native code says that a Python error is set.
//!
//! Native code of this crate reports a Python error as C does: the indicator is set, and the function returns a marker
//! without size. [`Raised`] stands for any error, [`Fatal`] for one that has to leave `run_forever` (`SystemExit`,
//! `KeyboardInterrupt`), as in asyncio.

use std::ffi::CString;

use pyo3::ffi;
use pyo3::prelude::*;

use super::object::Ref;

/// The error indicator is set.
#[must_use = "the error indicator stays set until the error is returned, cleared or reported"]
#[derive(Debug)]
pub(crate) struct Raised;

/// The error indicator is set, to an error that stops the loop.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fatal;

impl From<Fatal> for Raised {
    #[inline(always)]
    fn from(_: Fatal) -> Raised {
        Raised
    }
}

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Raised {
        with_attached(|py| error.restore(py));
        Raised
    }
}

impl From<Raised> for PyErr {
    fn from(_: Raised) -> PyErr {
        with_attached(PyErr::fetch)
    }
}

/// Runs `body` with the token of this thread, which is attached.
///
/// # Panics
/// If it is not attached, which means that a Python error was passed to a detached thread.
#[cold]
pub(super) fn with_attached<T>(body: impl FnOnce(Python<'_>) -> T) -> T {
    // SAFETY: the function may be called on every thread.
    assert!(unsafe { ffi::PyGILState_Check() } != 0, "a Python error on a thread that is not attached");
    // SAFETY: just checked, and `body` cannot keep the token.
    body(unsafe { Python::assume_attached() })
}

/// The outcome of several steps, each of which may hit a fatal error. All steps are taken. The first error is kept out
/// of the indicator meanwhile, so that no step runs Python with an exception set.
#[derive(Debug, Default)]
pub(crate) struct Outcome(Option<Ref>);

impl Outcome {
    /// Notes the result of a step.
    pub(crate) fn note(&mut self, step: Result<(), Fatal>) {
        if let Err(Fatal) = step {
            let exception = take_exception();
            self.0.get_or_insert(exception);
        }
    }

    /// Has a step hit a fatal error?
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn is_fatal(&self) -> bool {
        self.0.is_some()
    }

    /// Sets the first error again.
    pub(crate) fn finish(self) -> Result<(), Fatal> {
        match self.0 {
            Some(exception) => {
                let Raised = raise(exception);
                Err(Fatal)
            }
            None => Ok(()),
        }
    }
}

/// The value. An exception is dropped.
pub(crate) fn unless_raised<T>(result: Result<T, Raised>) -> Option<T> {
    result.map_err(|raised| drop(raised.take())).ok()
}

impl Raised {
    /// Takes the error out of the indicator, with its traceback attached.
    pub(crate) fn take(self) -> Ref {
        take_exception()
    }
}

/// Takes the current exception out of the indicator. If none is set, because a C function has broken its contract, a
/// `SystemError` takes its place: the caller always has something to report.
pub(crate) fn take_exception() -> Ref {
    // SAFETY: called on an attached thread; each call hands out an owned reference or null.
    unsafe {
        #[cfg(Py_3_12)]
        let raised = ffi::PyErr_GetRaisedException();
        #[cfg(not(Py_3_12))]
        let raised = {
            let (mut kind, mut value, mut trace) =
                (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
            ffi::PyErr_Fetch(&mut kind, &mut value, &mut trace);
            ffi::PyErr_NormalizeException(&mut kind, &mut value, &mut trace);
            if !trace.is_null() && !value.is_null() {
                ffi::PyException_SetTraceback(value, trace);
            }
            drop(Ref::from_owned(kind));
            drop(Ref::from_owned(trace));
            value
        };
        match Ref::from_owned(raised) {
            Some(exception) => exception,
            None => {
                ffi::PyErr_SetString(
                    ffi::PyExc_SystemError,
                    c"a callee of wakeloop failed without an exception".as_ptr(),
                );
                take_exception()
            }
        }
    }
}

/// Puts an exception (back) into the indicator.
pub(crate) fn raise(exception: Ref) -> Raised {
    // SAFETY: this thread is attached; the exception's reference is given away.
    unsafe {
        #[cfg(Py_3_12)]
        ffi::PyErr_SetRaisedException(exception.into_ptr());
        #[cfg(not(Py_3_12))]
        {
            let kind = ffi::Py_TYPE(exception.as_ptr()).cast::<ffi::PyObject>();
            ffi::Py_INCREF(kind);
            let trace = ffi::PyException_GetTraceback(exception.as_ptr());
            ffi::PyErr_Restore(kind, exception.into_ptr(), trace);
        }
    }
    Raised
}

/// Runs `body`, which sets no error, with no error set. An error that was set before is set again afterwards.
#[cold]
pub(crate) fn undisturbed<T>(body: impl FnOnce() -> T) -> T {
    let pending = is_error_set().then(take_exception);
    let result = body();
    if let Some(exception) = pending {
        let Raised = raise(exception);
    }
    result
}

/// Runs `body` as an `except` block that handles `exception`, which `sys.exc_info()` and `logging.exception()` then
/// show.
#[cold]
pub(crate) fn handling<T>(exception: &Ref, body: impl FnOnce() -> T) -> T {
    // SAFETY: this thread is attached; each call gives an owned reference or null, or takes a borrowed one or null.
    unsafe {
        let outer = Ref::from_owned(ffi::PyErr_GetHandledException());
        ffi::PyErr_SetHandledException(std::ptr::null_mut());
        // The top entry of the exception stack is empty now, so this is the exception that a caller handles. If it is
        // also `outer`, the entry was empty before.
        let callers = Ref::from_owned(ffi::PyErr_GetHandledException());
        ffi::PyErr_SetHandledException(exception.as_ptr());
        let result = body();
        let own = outer.filter(|outer| callers.as_ref().is_none_or(|it| it.as_ptr() != outer.as_ptr()));
        ffi::PyErr_SetHandledException(own.as_ref().map_or(std::ptr::null_mut(), Ref::as_ptr));
        result
    }
}

/// Issues a warning from a destructor: an exception that is set stays set, and a warning that is turned into an
/// exception is printed, with `source` (which may be null) as its source.
#[cold]
pub(crate) fn warn(category: *mut ffi::PyObject, text: &str, source: *mut ffi::PyObject) {
    let Ok(text) = CString::new(text) else { return };
    // SAFETY: every caller is attached and gives a class of warnings.
    undisturbed(|| unsafe {
        if ffi::PyErr_WarnEx(category, text.as_ptr(), 1) < 0 {
            ffi::PyErr_WriteUnraisable(source);
        }
    });
}

#[cfg(Py_3_14)]
unsafe extern "C" {
    /// A public and documented function, which pyo3-ffi leaves out.
    fn PyErr_FormatUnraisable(format: *const std::ffi::c_char, ...);
}

/// Passes the error that is set to `sys.unraisablehook`, with the object. Since 3.14 a text says what has failed; `format`
/// names the object as `%R`.
#[cold]
fn ignored(format: &std::ffi::CStr, object: &Ref) {
    cfg_select! {
        // SAFETY: every caller is attached; the format names one object, which lives.
        Py_3_14 => unsafe { PyErr_FormatUnraisable(format.as_ptr(), object.as_ptr()) },
        _ => {
            let _ = format;
            object.write_unraisable();
        }
    }
}

/// As the interpreter does for a `__del__` that raises.
pub(crate) fn ignored_in_finalizer(finalizer: &Ref) {
    ignored(c"Exception ignored while calling deallocator %R", finalizer);
}

/// As this version of `io` does for a file that fails when it is freed. Before 3.13 `io` says nothing.
pub(crate) fn ignored_while_finalizing(file: &Ref) {
    if cfg!(Py_3_13) {
        ignored(c"Exception ignored while finalizing file %R", file);
    } else {
        clear_error();
    }
}

/// Runs the Python handlers of signals that came, if this is the main thread.
pub(crate) fn check_signals() -> Result<(), Raised> {
    // SAFETY: every caller is attached.
    if unsafe { ffi::PyErr_CheckSignals() } == 0 { Ok(()) } else { Err(Raised) }
}

/// Sets a MemoryError.
#[cold]
pub(crate) fn no_memory() -> Raised {
    // SAFETY: this thread is attached; the exception was made when the interpreter started.
    unsafe { ffi::PyErr_NoMemory() };
    Raised
}

/// Is an error set?
#[inline(always)]
pub(crate) fn is_error_set() -> bool {
    // SAFETY: reads this thread's indicator.
    !unsafe { ffi::PyErr_Occurred() }.is_null()
}

/// Forgets the error that is set.
pub(crate) fn clear_error() {
    // SAFETY: every caller is attached, as for all of this room.
    unsafe { ffi::PyErr_Clear() }
}
