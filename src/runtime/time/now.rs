//! The time by which sleeps go, which a test may control.

use std::time::Instant;

use crate::runtime::{clock, context};

/// The time by which sleeps, timeouts and intervals go: that of [`Instant::now`], or in a runtime of
/// [`testing`](crate::runtime::testing) the time of its clock.
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
#[inline(always)]
pub fn now() -> Instant {
    if clock::may_be_simulated() { simulated_now() } else { Instant::now() }
}

#[cold]
fn simulated_now() -> Instant {
    context::try_with(|shared| Some(shared.simulation()?.clock.now())).flatten().unwrap_or_else(Instant::now)
}
