//! What a look for an item came to, for Python: owned, so that nothing is borrowed while Python code runs.

use std::io;

use pyo3::ffi;

use crate::bridge::budget;
use crate::bridge::io_error::raise_io;
use crate::capi::buffer::{bytes_from, bytes_slice};
use crate::capi::call::call;
use crate::capi::coroutine::Step;
use crate::capi::error::raise;
use crate::capi::fallible::string;
use crate::capi::imports::imports;
use crate::capi::{Raised, Ref};
use crate::runtime::net::{Taken, Want};

#[derive(Debug)]
pub(super) enum Found {
    Item(Ref),
    /// What came before the end of the stream; true if that is nothing.
    Rest(Ref, bool),
    TooLong(usize),
    Failed(io::Error),
    Nothing,
}

impl Found {
    #[inline(always)]
    pub(super) fn of(taken: Taken<'_>) -> Result<Found, Raised> {
        Ok(match taken {
            Taken::Item(bytes) => Found::Item(bytes_from(bytes)?),
            Taken::Rest(bytes) => Found::Rest(bytes_from(bytes)?, bytes.is_empty()),
            Taken::TooLong(len) => Found::TooLong(len),
            Taken::Failed(error) => Found::Failed(error),
            Taken::Nothing => Found::Nothing,
        })
    }

    /// The end of a read that wanted `want`; `None` if it has to wait. `next`: the end of the stream ends an iteration.
    #[inline(always)]
    pub(super) fn step(self, want: &Want, next: bool, limit: usize) -> Result<Option<Step>, Raised> {
        match self {
            Found::Item(bytes) => {
                // SAFETY: a bytes object.
                budget::spend_item(unsafe { bytes_slice(bytes.as_ptr()) }.len());
                Ok(Some(Step::Done(bytes)))
            }
            Found::Nothing => Ok(None),
            Found::Rest(bytes, empty) => rest(bytes, empty, want, next).map(Some),
            Found::TooLong(len) => Err(too_long(want, len, limit)),
            Found::Failed(error) => Err(raise_io(&error)),
        }
    }
}

/// What the end of the stream means for a read that wanted more.
#[cold]
fn rest(bytes: Ref, empty: bool, want: &Want, next: bool) -> Result<Step, Raised> {
    if next && empty {
        // SAFETY: a static of the interpreter; the GIL is held.
        unsafe { ffi::PyErr_SetNone(ffi::PyExc_StopAsyncIteration) };
        return Err(Raised);
    }
    let expected = match want {
        Want::Some(_) | Want::All | Want::Line => return Ok(Step::Done(bytes)),
        Want::Exact(expected) => size(*expected)?,
        Want::Until(_) => Ref::none(),
        Want::Frame(_) => size(4)?,
    };
    raise(call(&imports().incomplete_read, &[bytes.as_ptr(), expected.as_ptr()])?);
    Err(Raised)
}

#[cold]
fn too_long(want: &Want, len: usize, limit: usize) -> Raised {
    let message = match want {
        Want::Frame(most) => format!("a frame of {len} bytes is longer than the limit of {most}"),
        _ => format!("no end is found within the limit of {limit} bytes"),
    };
    let made = string(&message).and_then(|text| {
        let len = size(len)?;
        call(&imports().limit_overrun, &[text.as_ptr(), len.as_ptr()])
    });
    if let Ok(exception) = made {
        raise(exception);
    }
    Raised
}

fn size(count: usize) -> Result<Ref, Raised> {
    // SAFETY: making an int; null on lack of memory.
    unsafe { Ref::from_owned(ffi::PyLong_FromSize_t(count)) }.ok_or(Raised)
}
