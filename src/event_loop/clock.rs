//! The loop's clock: `CLOCK_MONOTONIC`, which is also the clock of `time.monotonic`.

use std::mem::MaybeUninit;

/// The time of `loop.time()`: CLOCK_MONOTONIC in seconds, with the same rounding as `time.monotonic()`.
#[inline(always)]
pub(crate) fn monotonic() -> f64 {
    monotonic_nanos() as f64 / 1e9
}

/// CLOCK_MONOTONIC in nanoseconds.
#[inline(always)]
pub(crate) fn monotonic_nanos() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the clock exists on every system, so the call succeeds and initialises `now`.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
