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
use crate::capi::object::integer;
use crate::capi::{Raised, Ref};

/// Above this many unsent bytes the protocol is asked to pause, as in asyncio.
const HIGH: usize = 64 * 1024;

/// One mark.
#[derive(Debug)]
pub(crate) struct Mark {
    bytes: Cell<usize>,
    /// What it was set to, if that is not a whole number.
    exact: Cell<Option<f64>>,
}

impl Mark {
    pub(crate) const fn new(bytes: usize) -> Mark {
        Mark { bytes: Cell::new(bytes), exact: Cell::new(None) }
    }

    /// The most bytes that are not above it.
    #[inline(always)]
    pub(crate) fn get(&self) -> usize {
        self.bytes.get()
    }

    fn set_bytes(&self, bytes: usize) {
        self.bytes.set(bytes);
        self.exact.set(None);
    }

    /// Below zero is zero, and what is too large means "never".
    pub(crate) fn set(&self, value: *mut ffi::PyObject) -> Result<(), Raised> {
        // SAFETY: a live object, as every caller's argument is; -1 with an error set means failure.
        unsafe {
            if ffi::PyLong_Check(value) != 0 {
                self.set_bytes(usize::try_from(whole(value)?).unwrap_or(0));
                return Ok(());
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
            self.bytes.set(number as usize);
            self.exact.set(Some(number));
            Ok(())
        }
    }

    /// As Python sees it.
    pub(crate) fn shown(&self) -> Result<Ref, Raised> {
        match self.exact.get() {
            // SAFETY: making a float; an owned reference or null with an error.
            Some(number) => unsafe { Ref::from_owned(ffi::PyFloat_FromDouble(number)) }.ok_or(Raised),
            None => integer(i64::try_from(self.get()).unwrap_or(i64::MAX)),
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

    /// `set_write_buffer_limits(high, low)`. Either may be null or `None`.
    pub(crate) fn set(&self, high: *mut ffi::PyObject, low: *mut ffi::PyObject) -> Result<(), Raised> {
        // SAFETY: borrowed arguments of the running call, or null.
        let given = |value: *mut ffi::PyObject| unsafe { !value.is_null() && value != ffi::Py_None() };
        // SAFETY: as above.
        let odd = |value| given(value) && unsafe { ffi::PyLong_CheckExact(value) == 0 };
        if odd(high) || odd(low) {
            return self.set_odd(high, low);
        }
        let number = |value| if given(value) { whole(value).map(Some) } else { Ok(None) };
        let (high, low) = limits(number(high)?, number(low)?)?;
        self.high.set_bytes(high);
        self.low.set_bytes(low);
        Ok(())
    }

    /// By asyncio's own arithmetic.
    #[cold]
    fn set_odd(&self, high: *mut ffi::PyObject, low: *mut ffi::PyObject) -> Result<(), Raised> {
        // SAFETY: the GIL is held, as in every method.
        let py = unsafe { Python::assume_attached() };
        let rules = support(py, "buffer_limits").map_err(|error| restore(py, error))?;
        let none = Ref::none();
        let or_none = |value: *mut ffi::PyObject| if value.is_null() { none.as_ptr() } else { value };
        let limits = call(&Ref::from(rules), &[or_none(high), or_none(low)])?;
        let (low, high) = (Mark::new(0), Mark::new(0));
        for (index, mark) in [&low, &high].into_iter().enumerate() {
            // SAFETY: a borrowed reference to an item of the tuple that we hold, or null with an error.
            let item = unsafe { ffi::PyTuple_GetItem(limits.as_ptr(), index as ffi::Py_ssize_t) };
            if item.is_null() {
                return Err(Raised);
            }
            mark.set(item)?;
        }
        for (kept, new) in [(&self.low, low), (&self.high, high)] {
            kept.bytes.set(new.bytes.get());
            kept.exact.set(new.exact.get());
        }
        Ok(())
    }

    /// What `get_write_buffer_limits` returns.
    pub(crate) fn pair(&self) -> Result<Ref, Raised> {
        tuple([self.low.shown()?, self.high.shown()?])
    }
}

/// An int, or what of it there is room for.
fn whole(value: *mut ffi::PyObject) -> Result<i64, Raised> {
    let mut overflow = 0;
    // SAFETY: a live int; -1 with an error set means failure.
    let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(value, &mut overflow) };
    match overflow {
        // SAFETY: asks for the indicator only.
        0 if number == -1 && !unsafe { ffi::PyErr_Occurred() }.is_null() => Err(Raised),
        0 => Ok(number),
        1.. => Ok(i64::MAX),
        _ => Ok(i64::MIN),
    }
}

/// asyncio's defaults: 64 KiB, and low a quarter of high.
fn limits(high: Option<i64>, low: Option<i64>) -> Result<(usize, usize), Raised> {
    let high = high.unwrap_or_else(|| low.map_or(HIGH as i64, |low| low.saturating_mul(4)));
    let low = low.unwrap_or(high.div_euclid(4));
    if high >= low && low >= 0 {
        return Ok((high as usize, low as usize));
    }
    // SAFETY: reading a static of the interpreter.
    raise_message(
        unsafe { ffi::PyExc_ValueError },
        &format!("high ({high}) must be >= low ({low}) must be >= 0"),
    );
    Err(Raised)
}
