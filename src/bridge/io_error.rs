//! Turns I/O errors of the runtime into the exceptions that Python itself would raise. Besides the errors of the system
//! these are failed name lookups, threads that could not be started, and environment variables that mean nothing.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;

use crate::capi::error::{raise_errno_with, raise_numbered, raise_os_error};
use crate::capi::imports::imports;
use crate::capi::{Exception, Raised};
use crate::resolver::LookupError;
use crate::runtime::NoThread;
use crate::settings::WrongSetting;

/// CPython's text for a thread that cannot be started.
pub(crate) const NO_THREAD: &str = "can't start new thread";

/// An error of the system that was told with what was tried.
#[derive(Debug)]
struct Told {
    errno: i32,
    text: String,
}

impl Display for Told {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Error for Told {}

/// Gives an error of the system another text, and leaves others as they are.
pub(crate) fn told(error: io::Error, text: impl FnOnce(&io::Error) -> String) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::new(error.kind(), Told { errno, text: text(&error) }),
        None => error,
    }
}

/// Sets the exception for `error`.
pub(crate) fn raise_io(error: &io::Error) -> Raised {
    if let Some(inner) = error.get_ref() {
        if let Some(Told { errno, text }) = inner.downcast_ref() {
            return raise_errno_with(*errno, text);
        }
        if let Some(failure) = inner.downcast_ref::<LookupError>() {
            return raise_numbered(imports().gaierror.borrow(), failure.code(), &failure.to_string());
        }
        if inner.is::<NoThread>() {
            return Exception::RuntimeError.raise(NO_THREAD);
        }
        if let Some(wrong) = inner.downcast_ref::<WrongSetting>() {
            return Exception::ValueError.raise(&wrong.to_string());
        }
    }
    raise_os_error(error)
}
