//! I/O errors of the runtime as the exceptions that Python itself would raise: beside what the system reports, there
//! are a failed lookup of a name and the lack of a thread.

use std::io;

use pyo3::prelude::*;

use crate::capi::error::{self, fetch, raise};
use crate::capi::fallible::string;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::{Exception, Raised};
use crate::resolver::LookupError;
use crate::runtime::NoThread;

/// Python's text for a thread that cannot be started.
pub(crate) const NO_THREAD: &str = "can't start new thread";

/// Sets the exception for `error`.
pub(crate) fn raise_io(error: &io::Error) -> Raised {
    if let Some(inner) = error.get_ref() {
        if let Some(failure) = inner.downcast_ref::<LookupError>() {
            return raise_lookup(failure);
        }
        if inner.is::<NoThread>() {
            return Exception::RuntimeError.raise(NO_THREAD);
        }
    }
    error::raise_io(error)
}

/// Sets `socket.gaierror`.
#[cold]
fn raise_lookup(failure: &LookupError) -> Raised {
    let made = string(&failure.to_string()).and_then(|text| {
        let code = integer(failure.code())?;
        imports().gaierror.call(&[code.borrow(), text.borrow()])
    });
    match made {
        Ok(exception) => {
            raise(exception);
            Raised
        }
        Err(raised) => raised,
    }
}

/// The exception for `error`.
pub(crate) fn io_error(py: Python<'_>, error: &io::Error) -> PyErr {
    let Raised = raise_io(error);
    fetch(py)
}
