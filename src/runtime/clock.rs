//! The clocks: that of deadlines, which a test may control, and the clock of `Instant` as a number, which measures.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::context;

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

/// The time by which sleeps, timeouts and intervals of the current thread's runtime go.
#[inline(always)]
pub(super) fn now() -> Instant {
    if may_be_simulated() { simulated_now() } else { Instant::now() }
}

#[cold]
fn simulated_now() -> Instant {
    context::try_with(|shared| Some(shared.simulation()?.clock.now())).flatten().unwrap_or_else(Instant::now)
}

#[cfg(not(any(wakeloop_loom, wakeloop_shuttle)))]
pub(super) use crate::clock::instant_nanos as nanos;

/// The time in nanoseconds. In models it does not pass: each run of a model has to take the same way.
#[cfg(any(wakeloop_loom, wakeloop_shuttle))]
pub(super) fn nanos() -> u64 {
    1
}
