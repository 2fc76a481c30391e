//! The clock of `Instant` as a number, which measures, and whether a runtime has another clock of deadlines.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Whether this process has, or had, a runtime with a clock of its own (see `testing`).
static SIMULATED: AtomicBool = AtomicBool::new(false);

/// Makes `now` look for the clock of the thread's runtime from now on.
pub(super) fn expect_simulations() {
    SIMULATED.store(true, Relaxed);
}

/// Whether the current thread's runtime may be simulated. If not, nothing has to be looked up.
#[inline(always)]
pub(super) fn may_be_simulated() -> bool {
    // Relaxed: a thread gets such a runtime only after the store.
    SIMULATED.load(Relaxed)
}

#[cfg(not(any(wakeloop_loom, wakeloop_shuttle)))]
pub(super) use crate::clock::instant_nanos as nanos;

/// The time in nanoseconds. In models it does not pass: each run of a model has to take the same way.
#[cfg(any(wakeloop_loom, wakeloop_shuttle))]
pub(super) fn nanos() -> u64 {
    1
}

/// Longer sleeps are shortened to this, because `Instant` has an end: about 30 years.
const FOR_EVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Returns `start` plus `duration`.
pub(super) fn after(start: Instant, duration: Duration) -> Instant {
    start.checked_add(duration).unwrap_or_else(|| start + FOR_EVER)
}
