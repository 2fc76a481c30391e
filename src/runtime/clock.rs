//! The monotonic clock as a number. Reading it and subtracting two times takes a third of the instructions that
//! `Instant` takes, which counts where a poll is as short as the look at the clock.

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
