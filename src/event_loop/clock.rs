//! The clocks. The loop's is `CLOCK_MONOTONIC`, which is also the clock of `time.monotonic`.

use std::mem::MaybeUninit;

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

/// A counter that is cheap to read, and grows steadily: the processor's time stamp counter, or the coarse clock where
/// there is none. Only differences mean something, and no more than an estimate.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction. The kernel can forbid it to a process, but then the clocks of
    // the C library fail as well, because they use it.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: reads a register that the operating systems let every program read.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
        return count;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    monotonic_nanos()
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
