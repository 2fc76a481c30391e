//! The built-in exceptions that native code raises or checks for.

use pyo3::ffi;

use super::fallible::string;
use super::object::{Borrowed, Ref};
use super::raised::{Fatal, Raised, is_error_set, raise, take_exception};

macro_rules! exceptions {
    ($($name:ident = $symbol:ident),* $(,)?) => {
        /// A built-in exception class.
        #[derive(Clone, Copy, Debug)]
        #[allow(clippy::enum_variant_names, reason = "they are named as in Python")]
        pub(crate) enum Exception {
            $($name,)*
        }

        impl Exception {
            #[inline(always)]
            fn class_ptr(self) -> *mut ffi::PyObject {
                // SAFETY: the interpreter fills these statics before it runs any code, and never changes them.
                unsafe {
                    match self {
                        $(Exception::$name => ffi::$symbol,)*
                    }
                }
            }
        }
    };
}

exceptions! {
    AssertionError = PyExc_AssertionError,
    AttributeError = PyExc_AttributeError,
    BlockingIOError = PyExc_BlockingIOError,
    BrokenPipeError = PyExc_BrokenPipeError,
    BufferError = PyExc_BufferError,
    ConnectionError = PyExc_ConnectionError,
    Exception = PyExc_Exception,
    InterruptedError = PyExc_InterruptedError,
    KeyboardInterrupt = PyExc_KeyboardInterrupt,
    MemoryError = PyExc_MemoryError,
    NotImplementedError = PyExc_NotImplementedError,
    OSError = PyExc_OSError,
    OverflowError = PyExc_OverflowError,
    ResourceWarning = PyExc_ResourceWarning,
    RuntimeError = PyExc_RuntimeError,
    RuntimeWarning = PyExc_RuntimeWarning,
    StopIteration = PyExc_StopIteration,
    SystemError = PyExc_SystemError,
    SystemExit = PyExc_SystemExit,
    TimeoutError = PyExc_TimeoutError,
    TypeError = PyExc_TypeError,
    ValueError = PyExc_ValueError,
}

impl Exception {
    /// The class.
    #[inline(always)]
    pub(crate) fn class(self) -> Borrowed<'static> {
        // SAFETY: a class that lives as long as the interpreter.
        unsafe { Borrowed::from_ptr(self.class_ptr()) }
    }

    /// `raise Class(message)`: the error is set, and the result is what the caller returns.
    #[cold]
    pub(crate) fn raise(self, message: &str) -> Raised {
        raise_message(&self.class(), message)
    }

    /// Is `exception` one of these?
    pub(crate) fn matches(self, exception: &Ref) -> bool {
        // SAFETY: live objects.
        unsafe { ffi::PyErr_GivenExceptionMatches(exception.as_ptr(), self.class_ptr()) != 0 }
    }

    /// Is the error that is set one of these? False if none is set.
    pub(crate) fn is_set(self) -> bool {
        // SAFETY: an error is set; the class is a live object.
        is_error_set() && unsafe { ffi::PyErr_ExceptionMatches(self.class_ptr()) != 0 }
    }
}

/// `raise class(message)`.
#[cold]
pub(super) fn raise_message(class: &Ref, message: &str) -> Raised {
    if let Ok(text) = string(message) {
        // SAFETY: a live class, which the call checks, and a live text.
        unsafe { ffi::PyErr_SetObject(class.as_ptr(), text.as_ptr()) };
    }
    Raised
}

/// Takes the current exception, unless it is a fatal one, which stays set: `SystemExit` and `KeyboardInterrupt` end
/// `run_forever`; any other exception goes to the loop's exception handler.
pub(crate) fn take_unless_fatal() -> Result<Ref, Fatal> {
    let exception = take_exception();
    if Exception::SystemExit.matches(&exception) || Exception::KeyboardInterrupt.matches(&exception) {
        let Raised = raise(exception);
        return Err(Fatal);
    }
    Ok(exception)
}
