//! The clocks: that of deadlines, which a test may control, and the monotonic clock as a number.
//!
//! Reading the number and subtracting two of them takes a third of the instructions that `Instant` takes, which
//! counts where a poll is as short as the look at the clock. No test controls it: it measures.

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
pub(super) use real::nanos;

/// The time in nanoseconds. In models it does not pass: each run of a model has to take the same way.
#[cfg(any(wakeloop_loom, wakeloop_shuttle))]
pub(super) fn nanos() -> u64 {
    1
}

#[cfg(not(any(wakeloop_loom, wakeloop_shuttle)))]
mod real {
    use std::mem::MaybeUninit;

    /// The clock of `Instant`.
    const CLOCK: libc::clockid_t = cfg_select! {
        target_vendor = "apple" => libc::CLOCK_UPTIME_RAW,
        _ => libc::CLOCK_MONOTONIC,
    };

    /// The time in nanoseconds. Only differences mean something.
    #[inline]
    pub(in super::super) fn nanos() -> u64 {
        let mut now = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the clock exists on every system, so the call succeeds and initialises `now`.
        let now = unsafe {
            libc::clock_gettime(CLOCK, now.as_mut_ptr());
            now.assume_init()
        };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}
