//! Python exceptions made by native code: from a message, from an `errno`, from a Rust I/O error.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pyo3::PyTypeInfo;
use pyo3::ffi;
use pyo3::prelude::*;

pub(crate) use super::exceptions::take_unless_fatal;
use super::exceptions::{Exception, raise_message};
use super::fallible::string;
use super::inspect::integer;
use super::object::{Borrowed, Ref};
use super::raised::with_attached;
pub(crate) use super::raised::{
    Fatal, Outcome, Raised, handling, no_memory, raise, take_exception, undisturbed, unless_raised, warn,
};

/// An error of this kind, made at once: pyo3 would make it later, where a panic for lack of memory ends the process.
#[cold]
pub(crate) fn exception<K: PyTypeInfo>(message: impl AsRef<str>) -> PyErr {
    with_attached(|py| raise_message(&K::type_object(py).into_any().into(), message.as_ref()).into())
}

/// As [`exception`], with a message that Python formats. In it `%R` or `%S` stands for `object`.
#[cold]
pub(crate) fn exception_about<K: PyTypeInfo>(format: &CStr, object: &Bound<'_, PyAny>) -> PyErr {
    let py = object.py();
    // SAFETY: every format names one object, which lives; a string or null with an error comes out, and the exception
    // takes a reference of its own to the string.
    unsafe {
        // `PyErr_Format` is not used, because in early releases of 3.11 it replaces the error that the object's own
        // `__repr__` raised.
        if let Some(message) = Ref::from_owned(ffi::PyUnicode_FromFormat(format.as_ptr(), object.as_ptr())) {
            ffi::PyErr_SetObject(K::type_object_raw(py).cast(), message.as_ptr());
        }
    }
    PyErr::fetch(py)
}

/// Sets the `OSError` subclass that Python raises for this errno.
pub(crate) fn raise_errno(errno: i32) -> Raised {
    // SAFETY: this thread is attached; `PyErr_SetFromErrno` reads errno, which we set just before.
    unsafe {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            *libc::__errno_location() = errno;
        }
        #[cfg(any(target_os = "macos", target_os = "ios", target_os = "freebsd"))]
        {
            *libc::__error() = errno;
        }
        ffi::PyErr_SetFromErrno(ffi::PyExc_OSError);
    }
    Raised
}

/// Sets the `OSError` subclass that Python raises for this errno, with another text than the system's.
#[cold]
pub(crate) fn raise_errno_with(errno: i32, text: &str) -> Raised {
    // SAFETY: a class of the interpreter, which lives as long as it does.
    raise_numbered(unsafe { Borrowed::from_ptr(ffi::PyExc_OSError) }, errno, text)
}

/// Sets an exception of this class, `OSError` or a subclass, with a number and a text.
#[cold]
pub(crate) fn raise_numbered(class: Borrowed<'_>, number: i32, text: &str) -> Raised {
    let made = string(text).and_then(|text| class.call(&[integer(number)?.borrow(), text.borrow()]));
    made.map_or_else(|raised| raised, raise)
}

/// Sets the `OSError` subclass that Python raises for this errno, with a text and the name of a file.
#[cold]
pub(crate) fn raise_errno_about(errno: i32, text: &str, path: &Path) -> Raised {
    let path = path.as_os_str().as_bytes();
    // SAFETY: a class of the interpreter, which lives as long as it does.
    let class = unsafe { Borrowed::from_ptr(ffi::PyExc_OSError) };
    let raised = || {
        // SAFETY: this thread is attached, and the bytes live through the call; an owned reference or null with an
        // error.
        let name = unsafe {
            let size = path.len() as ffi::Py_ssize_t;
            Ref::from_owned(ffi::PyUnicode_DecodeFSDefaultAndSize(path.as_ptr().cast(), size))
                .ok_or(Raised)?
        };
        class.call(&[integer(errno)?.borrow(), string(text)?.borrow(), name.borrow()])
    };
    raised().map_or_else(|raised| raised, raise)
}

/// Sets the error indicator from an error of a system call. One of the runtime may be another exception than `OSError`:
/// see `bridge::io_error::raise_io`.
pub(crate) fn raise_os_error(error: &std::io::Error) -> Raised {
    match error.raw_os_error() {
        Some(errno) => raise_errno(errno),
        None => match error.kind() {
            std::io::ErrorKind::TimedOut => Exception::TimeoutError.raise(&error.to_string()),
            std::io::ErrorKind::OutOfMemory => no_memory(),
            _ => Exception::OSError.raise(&error.to_string()),
        },
    }
}
