//! Time: sleeps, timeouts, intervals. Finer than a millisecond, and never early.
//!
//! A timer enters its runtime's heap when it is first polled, and leaves it when it fires or is dropped. It
//! belongs to the runtime on whose thread that first poll happens.

mod interval;
mod sleep;
mod timeout;

use std::time::Instant;

use super::clock;

pub use interval::{Interval, interval};
pub(super) use sleep::after;
pub use sleep::{Sleep, sleep, sleep_until};
pub use timeout::{Elapsed, Timeout, timeout, timeout_at};

/// The time by which sleeps, timeouts and intervals go: that of [`Instant::now`], or in a runtime of
/// [`testing`](super::testing) the time of its clock.
///
/// Code that is to be tested under a paused clock reads the time here, and subtracts: `now() - start`.
/// [`Instant::elapsed`] always reads the system's clock.
///
/// ```
/// use std::time::{Duration, Instant};
/// use wakeloop::runtime::{testing, time};
///
/// let start = Instant::now();
/// testing::run(1, async {
///     let start = time::now();
///     time::sleep(Duration::from_secs(3600)).await;
///     assert_eq!(time::now() - start, Duration::from_secs(3600));
/// });
/// assert!(start.elapsed() < Duration::from_secs(60));
/// ```
#[inline]
pub fn now() -> Instant {
    clock::now()
}
