//! The high-water and low-water marks of a write buffer; see `flow_control`.
//!
//! asyncio accepts any object that can be compared with a size, and returns the same object. Here a mark is any number,
//! of which the object is kept too, unless it is an int that is made again when a program asks.

use std::cell::Cell;

use crate::capi::fallible::tuple;
use crate::capi::imports::support;
use crate::capi::inspect::integer;
use crate::capi::{Borrowed, Exception, Raised, Ref, Slot};

/// asyncio's default for the high-water mark.
const HIGH: usize = 64 * 1024;

/// The value of a mark.
struct Limit {
    bytes: usize,
    given: Option<Ref>,
}

impl Limit {
    /// A negative value becomes 0. A value that is too large becomes the largest one.
    fn of(value: &Ref) -> Result<Limit, Raised> {
        let (bytes, is_plain) = match value.saturating_int() {
            // A saturated value is equal to the limit of the type.
            Some(number) => (
                usize::try_from(number).unwrap_or(0),
                value.is_exact_int() && (0..i64::MAX).contains(&number),
            ),
            None => {
                let number = value.to_float()?;
                if number.is_nan() {
                    return Err(Exception::ValueError.raise("a limit must be a number, not nan"));
                }
                // The cast saturates.
                (number as usize, false)
            }
        };
        Ok(Limit { bytes, given: (!is_plain).then(|| value.clone_ref()) })
    }
}

/// One mark.
#[derive(Debug)]
pub(crate) struct Mark {
    bytes: Cell<usize>,
    /// The object that the mark was set to; empty if it was an int that equals `bytes`.
    given: Slot,
}

impl Mark {
    const fn new(bytes: usize) -> Mark {
        Mark { bytes: Cell::new(bytes), given: Slot::empty() }
    }

    /// The largest number of bytes that is not above the mark.
    #[inline(always)]
    pub(crate) fn get(&self) -> usize {
        self.bytes.get()
    }

    pub(crate) fn set(&self, value: &Ref) -> Result<(), Raised> {
        self.put(Limit::of(value)?);
        Ok(())
    }

    fn put(&self, limit: Limit) {
        self.bytes.set(limit.bytes);
        // Last, because dropping the previous value may run Python code.
        self.given.set(limit.given);
    }

    /// The mark as a Python number.
    pub(crate) fn to_python(&self) -> Result<Ref, Raised> {
        match self.given.get() {
            Some(given) => Ok(given),
            None => integer(i64::try_from(self.get()).unwrap_or(i64::MAX)),
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
        self.low.put(low);
        self.high.put(high);
        Ok(())
    }

    /// The objects that the marks own, for the garbage collector.
    pub(crate) fn slots(&self) -> [&Slot; 2] {
        [&self.high.given, &self.low.given]
    }

    /// The result of `get_write_buffer_limits`.
    pub(crate) fn pair(&self) -> Result<Ref, Raised> {
        tuple([self.low.to_python()?, self.high.to_python()?])
    }
}
