//! Time: sleeps, timeouts, intervals. Finer than a millisecond, and never early.
//!
//! A timer enters its runtime's heap when it is first polled, and leaves it when it fires or is dropped. It
//! belongs to the runtime on whose thread that first poll happens.

mod interval;
mod now;
mod sleep;
mod timeout;

pub use interval::{Interval, interval};
pub use now::now;
pub use sleep::{Sleep, sleep, sleep_until};
pub use timeout::{Elapsed, Timeout, timeout, timeout_at};
