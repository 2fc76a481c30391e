//! The clocks. The loop's is `CLOCK_MONOTONIC`, which is also the clock of `time.monotonic`.

use std::mem::MaybeUninit;

pub(crate) use crate::recorder::clock::{counter as ticks, counter_rate as ticks_per_second};

/// The time of `loop.time()`: CLOCK_MONOTONIC in seconds, with the same rounding as `time.monotonic()`.
#[inline(always)]
pub(crate) fn monotonic() -> f64 {
    monotonic_nanos() as f64 / 1e9
}

/// CLOCK_MONOTONIC in nanoseconds.
#[inline(always)]
pub(crate) fn monotonic_nanos() -> u64 {
    nanos(libc::CLOCK_MONOTONIC)
}

/// The processor time of this process's other threads, in nanoseconds.
pub(crate) fn other_threads_nanos() -> u64 {
    // In this order the difference is not negative.
    let own = nanos(libc::CLOCK_THREAD_CPUTIME_ID);
    nanos(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(own)
}

#[inline(always)]
fn nanos(clock: libc::clockid_t) -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: these clocks exist on every system, so the call succeeds and initialises `now`.
    let now = unsafe {
        libc::clock_gettime(clock, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
