//! The marks of a write buffer: above the high one the protocol is asked to pause, at the low one to go on.
//!
//! asyncio keeps whatever compares with a size, and shows it again. This keeps any int that memory could hold, and floats.

use std::cell::Cell;

use crate::capi::fallible::tuple;
use crate::capi::imports::support;
use crate::capi::inspect::{float, integer};
use crate::capi::{Borrowed, Exception, Raised, Ref};

/// Above this many unsent bytes the protocol is asked to pause, as in asyncio.
const HIGH: usize = 64 * 1024;

/// What a mark is set to.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// The most bytes that are not above it.
    bytes: usize,
    /// The number that was given, if it is not an int.
    exact: Option<f64>,
}

impl Limit {
    /// Below zero is zero, and what is too large means "never".
    fn of(value: &Ref) -> Result<Limit, Raised> {
        if let Some(number) = value.saturating_int() {
            return Ok(Limit { bytes: usize::try_from(number).unwrap_or(0), exact: None });
        }
        let number = value.to_float()?;
        if number.is_nan() {
            return Err(Exception::ValueError.raise("a limit must be a number, not nan"));
        }
        // Saturates.
        Ok(Limit { bytes: number as usize, exact: Some(number) })
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

    pub(crate) fn set(&self, value: &Ref) -> Result<(), Raised> {
        self.0.set(Limit::of(value)?);
        Ok(())
    }

    /// As Python sees it.
    pub(crate) fn shown(&self) -> Result<Ref, Raised> {
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

impl WaterMarks {
    /// asyncio's.
    pub(crate) const fn new() -> WaterMarks {
        WaterMarks { high: Mark::new(HIGH), low: Mark::new(HIGH / 4) }
    }

    /// `set_write_buffer_limits(high, low)`, by asyncio's own arithmetic.
    #[cold]
    pub(crate) fn set(&self, high: Option<Borrowed<'_>>, low: Option<Borrowed<'_>>) -> Result<(), Raised> {
        let none = Borrowed::none();
        let (high, low) = (high.unwrap_or(none), low.unwrap_or(none));
        let rules = Ref::from(support(high.py(), "buffer_limits")?);
        let limits = rules.call(&[high, low])?;
        let Some([low, high]) = limits.tuple_items() else {
            return Err(Exception::SystemError.raise("buffer_limits() gives a pair"));
        };
        let (low, high) = (Limit::of(low)?, Limit::of(high)?);
        self.low.0.set(low);
        self.high.0.set(high);
        Ok(())
    }

    /// What `get_write_buffer_limits` returns.
    pub(crate) fn pair(&self) -> Result<Ref, Raised> {
        tuple([self.low.shown()?, self.high.shown()?])
    }
}
