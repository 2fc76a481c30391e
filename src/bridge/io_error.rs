//! Turns I/O errors of the runtime into the exceptions that Python itself would raise. Besides the errors of the system
//! these are failed name lookups, threads that could not be started, and environment variables that mean nothing.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};

use crate::capi::error::{raise_errno_about, raise_errno_with, raise_numbered, raise_os_error};
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

/// An error of the system about a file.
#[derive(Debug)]
struct AboutFile {
    errno: i32,
    text: String,
    path: PathBuf,
}

impl Display for AboutFile {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.text, self.path.display())
    }
}

impl Error for AboutFile {}

/// Adds the name of the file to an error of the system, and leaves others as they are.
pub(crate) fn about_file(error: io::Error, path: &Path) -> io::Error {
    let (errno, text) = match error.get_ref().and_then(|inner| inner.downcast_ref::<Told>()) {
        Some(Told { errno, text }) => (*errno, text.clone()),
        None => match error.raw_os_error() {
            Some(errno) => (errno, reason(&error)),
            None => return error,
        },
    };
    io::Error::new(error.kind(), AboutFile { errno, text, path: path.to_owned() })
}

/// The text of an error of the system, as `os.strerror` gives it.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|errno| format!(" (os error {errno})"));
    number.and_then(|number| text.strip_suffix(&number).map(str::to_owned)).unwrap_or(text)
}

/// Sets the exception for `error`.
pub(crate) fn raise_io(error: &io::Error) -> Raised {
    if let Some(inner) = error.get_ref() {
        if let Some(Told { errno, text }) = inner.downcast_ref() {
            return raise_errno_with(*errno, text);
        }
        if let Some(AboutFile { errno, text, path }) = inner.downcast_ref() {
            return raise_errno_about(*errno, text, path);
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
