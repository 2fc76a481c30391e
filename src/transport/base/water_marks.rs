//! The high-water and low-water marks of a write buffer; see `flow_control`.
//!
//! asyncio accepts any object that can be compared with a size, and returns the same object. Here a mark is an int (at
//! most the largest size) or a float.

use std::cell::Cell;

use crate::capi::fallible::tuple;
use crate::capi::imports::support;
use crate::capi::inspect::{float, integer};
use crate::capi::{Borrowed, Exception, Raised, Ref};

/// asyncio's default for the high-water mark.
const HIGH: usize = 64 * 1024;

/// The value of a mark.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// The largest number of bytes that is not above the mark.
    bytes: usize,
    /// The float that the mark was set to.
    exact: Option<f64>,
}

impl Limit {
    /// A negative value becomes 0. A value that is too large becomes the largest one.
    fn of(value: &Ref) -> Result<Limit, Raised> {
        if let Some(number) = value.saturating_int() {
            return Ok(Limit { bytes: usize::try_from(number).unwrap_or(0), exact: None });
        }
        let number = value.to_float()?;
        if number.is_nan() {
            return Err(Exception::ValueError.raise("a limit must be a number, not nan"));
        }
        // The cast saturates.
        Ok(Limit { bytes: number as usize, exact: Some(number) })
    }
}

/// One mark.
#[derive(Debug)]
pub(crate) struct Mark(Cell<Limit>);

impl Mark {
    const fn new(bytes: usize) -> Mark {
        Mark(Cell::new(Limit { bytes, exact: None }))
    }

    /// The largest number of bytes that is not above the mark.
    #[inline(always)]
    pub(crate) fn get(&self) -> usize {
        self.0.get().bytes
    }

    pub(crate) fn set(&self, value: &Ref) -> Result<(), Raised> {
        self.0.set(Limit::of(value)?);
        Ok(())
    }

    /// The mark as a Python number.
    pub(crate) fn to_python(&self) -> Result<Ref, Raised> {
        let Limit { bytes, exact } = self.0.get();
        match exact {
            Some(number) => float(number),
            None => integer(i64::try_from(bytes).unwrap_or(i64::MAX)),
        }
    }
}

/// The marks of a transport.
#[derive(Debug)]
pub(crate) struct WaterMarks {
    pub(crate) high: Mark,
    pub(crate) low: Mark,
}

/// Marks that no buffer reaches.
impl Default for WaterMarks {
    fn default() -> WaterMarks {
        WaterMarks { high: Mark::new(usize::MAX), low: Mark::new(0) }
    }
}

impl WaterMarks {
    /// The marks with asyncio's defaults.
    pub(crate) const fn new() -> WaterMarks {
        WaterMarks { high: Mark::new(HIGH), low: Mark::new(HIGH / 4) }
    }

    /// Has a buffer of this size reached the mark at which its writer, which may be `paused`, has to pause or resume?
    #[inline(always)]
    pub(crate) fn are_crossed(&self, size: usize, paused: bool) -> bool {
        if paused { size <= self.low.get() } else { size >= self.high.get() }
    }

    /// `set_write_buffer_limits(high, low)`. Python code computes the defaults and checks the values, as asyncio does.
    #[cold]
    pub(crate) fn set(&self, high: Option<Borrowed<'_>>, low: Option<Borrowed<'_>>) -> Result<(), Raised> {
        let none = Borrowed::none();
        let (high, low) = (high.unwrap_or(none), low.unwrap_or(none));
        let rules = Ref::from(support(high.py(), "buffer_limits")?);
        let limits = rules.call(&[high, low])?;
        let Some([low, high]) = limits.tuple_items() else {
            return Err(Exception::SystemError.raise("buffer_limits() must return a pair"));
        };
        let (low, high) = (Limit::of(low)?, Limit::of(high)?);
        self.low.0.set(low);
        self.high.0.set(high);
        Ok(())
    }

    /// The result of `get_write_buffer_limits`.
    pub(crate) fn pair(&self) -> Result<Ref, Raised> {
        tuple([self.low.to_python()?, self.high.to_python()?])
    }
}
