//! The marks of a write buffer: above the high one the protocol is asked to pause, at the low one to go on.
//!
//! asyncio keeps whatever compares with a size, and shows it again. So does this with any int that memory could hold, and
//! with floats.

use std::cell::Cell;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::call::call;
use crate::capi::error::{raise_message, restore};
use crate::capi::fallible::tuple;
use crate::capi::imports::support;
use crate::capi::inspect::integer;
use crate::capi::{Raised, Ref};

/// Above this many unsent bytes the protocol is asked to pause, as in asyncio.
const HIGH: usize = 64 * 1024;

/// What a mark is set to.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// The most bytes that are not above it.
    bytes: usize,
    /// The number given, if that is not an int.
    exact: Option<f64>,
}

impl Limit {
    /// Below zero is zero, and what is too large means "never".
    fn of(value: *mut ffi::PyObject) -> Result<Limit, Raised> {
        // SAFETY: a live object, as every caller's argument is; -1 with an error set means failure, of which there is
        // none for an int.
        unsafe {
            if ffi::PyLong_Check(value) != 0 {
                let mut overflow = 0;
                let number = ffi::PyLong_AsLongLongAndOverflow(value, &mut overflow);
                let number = if overflow > 0 { i64::MAX } else { number };
                return Ok(Limit { bytes: usize::try_from(number).unwrap_or(0), exact: None });
            }
            let number = ffi::PyFloat_AsDouble(value);
            if number == -1.0 && !ffi::PyErr_Occurred().is_null() {
                return Err(Raised);
            }
            if number.is_nan() {
                raise_message(ffi::PyExc_ValueError, "a limit must be a number, not nan");
                return Err(Raised);
            }
            // Saturates.
            Ok(Limit { bytes: number as usize, exact: Some(number) })
        }
    }
}

/// One mark.
#[derive(Debug)]
pub(crate) struct Mark(Cell<Limit>);

impl Mark {
    pub(crate) const fn new(bytes: usize) -> Mark {
        Mark(Cell::new(Limit { bytes, exact: None }))
    }

    /// The most bytes that are not above it.
    #[inline(always)]
    pub(crate) fn get(&self) -> usize {
        self.0.get().bytes
    }

    pub(crate) fn set(&self, value: *mut ffi::PyObject) -> Result<(), Raised> {
        self.0.set(Limit::of(value)?);
        Ok(())
    }

    /// As Python sees it.
    pub(crate) fn shown(&self) -> Result<Ref, Raised> {
        let Limit { bytes, exact } = self.0.get();
        match exact {
            // SAFETY: making a float; an owned reference or null with an error.
            Some(number) => unsafe { Ref::from_owned(ffi::PyFloat_FromDouble(number)) }.ok_or(Raised),
            None => integer(i64::try_from(bytes).unwrap_or(i64::MAX)),
        }
    }
}

/// The marks of a transport.
#[derive(Debug)]
pub(crate) struct Marks {
    pub(crate) high: Mark,
    pub(crate) low: Mark,
}

impl Marks {
    /// asyncio's.
    pub(crate) const fn new() -> Marks {
        Marks { high: Mark::new(HIGH), low: Mark::new(HIGH / 4) }
    }

    /// `set_write_buffer_limits(high, low)`, by asyncio's own arithmetic. Either may be null or `None`.
    #[cold]
    pub(crate) fn set(&self, high: *mut ffi::PyObject, low: *mut ffi::PyObject) -> Result<(), Raised> {
        // SAFETY: the GIL is held, as in every method.
        let py = unsafe { Python::assume_attached() };
        let rules = support(py, "buffer_limits").map_err(|error| restore(py, error))?;
        let none = Ref::none();
        let or_none = |value: *mut ffi::PyObject| if value.is_null() { none.as_ptr() } else { value };
        let limits = call(&Ref::from(rules), &[or_none(high), or_none(low)])?;
        let limit = |index| {
            // SAFETY: a borrowed reference to an item of the tuple that we hold, or null with an error.
            let item = unsafe { ffi::PyTuple_GetItem(limits.as_ptr(), index) };
            if item.is_null() { Err(Raised) } else { Limit::of(item) }
        };
        let (low, high) = (limit(0)?, limit(1)?);
        self.low.0.set(low);
        self.high.0.set(high);
        Ok(())
    }

    /// What `get_write_buffer_limits` returns.
    pub(crate) fn pair(&self) -> Result<Ref, Raised> {
        tuple([self.low.shown()?, self.high.shown()?])
    }
}
