//! Numbers that users give, with the errors that asyncio and the socket module raise for them.
//!
//! They are checked in the bodies of the functions, because pyo3 adds a note to the error of an argument's
//! conversion.

use pyo3::prelude::*;

use crate::capi::{Exception, Raised, Ref};
use crate::settings::MAX_WORKERS;

/// The value of an int, or of an object with `__index__`. An int beyond 64 bits becomes the nearest value within
/// them.
pub(super) fn integer(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let value = Ref::from(value.clone());
    match value.saturating_int() {
        Some(number) => Ok(number),
        None => Ok(value.to_index()? as i64),
    }
}

/// A port. Raises OverflowError as the socket method of this name does.
pub(super) fn port(value: i64, function: &str) -> Result<u16, Raised> {
    u16::try_from(value)
        .map_err(|_| Exception::OverflowError.raise(&format!("{function}(): port must be 0-65535.")))
}

/// The limit of a stream. Raises ValueError as `asyncio.StreamReader` does.
pub(super) fn limit(value: i64) -> Result<usize, Raised> {
    positive(value, "Limit cannot be <= 0")
}

/// How many worker threads the runtime is to have.
pub(super) fn workers(value: i64) -> Result<usize, Raised> {
    let workers = positive(value, "workers must be at least 1")?;
    if workers > MAX_WORKERS {
        return Err(Exception::ValueError.raise("workers must be at most 1024"));
    }
    Ok(workers)
}

fn positive(value: i64, refusal: &str) -> Result<usize, Raised> {
    match value {
        ..1 => Err(Exception::ValueError.raise(refusal)),
        number => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
    }
}
