//! The exceptions of asyncio's streams.

use pyo3::ffi;

use crate::capi::error::raise;
use crate::capi::fallible::string;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::{Exception, Raised, Ref};
use crate::framing::TooLong;

/// Raises `IncompleteReadError(partial, expected)`.
#[cold]
pub(crate) fn incomplete(partial: &Ref, expected: &Ref) -> Raised {
    raise_made(imports().incomplete_read.call(&[partial.borrow(), expected.borrow()]))
}

/// Raises `LimitOverrunError(message, consumed)`.
#[cold]
pub(crate) fn overrun(message: &str, consumed: usize) -> Raised {
    raise_made(make_overrun(message, consumed))
}

/// Raises the exception of `readuntil` for an item that is too long.
#[cold]
pub(crate) fn item_too_long(item: TooLong) -> Raised {
    overrun(message(item), item.consumed)
}

/// Raises the exception of `readline` for a line that is too long. The caller has removed the line.
#[cold]
pub(crate) fn line_too_long(line: TooLong) -> Raised {
    let cause = match make_overrun(message(line), line.consumed) {
        Ok(cause) => cause,
        Err(raised) => return raised,
    };
    let error = Exception::ValueError.raise(message(line)).take();
    // SAFETY: both exceptions are live objects. `PyException_SetContext` steals the reference to the second one.
    unsafe { ffi::PyException_SetContext(error.as_ptr(), cause.into_ptr()) };
    raise(error)
}

fn message(item: TooLong) -> &'static str {
    match item.end {
        None => "Separator is not found, and chunk exceed the limit",
        Some(_) => "Separator is found, but chunk is longer than limit",
    }
}

fn make_overrun(message: &str, consumed: usize) -> Result<Ref, Raised> {
    imports().limit_overrun.call(&[string(message)?.borrow(), integer(consumed as i64)?.borrow()])
}

/// Raises a new exception, or keeps the error that its creation has raised.
fn raise_made(exception: Result<Ref, Raised>) -> Raised {
    exception.map_or_else(|raised| raised, raise)
}
