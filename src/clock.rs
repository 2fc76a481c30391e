//! The clocks of the system, and the processor's counter. Each is read here and nowhere else.
//!
//! Deadlines of Rust code are `std::time::Instant`s, which the standard library reads. A model or a simulated runtime
//! has a clock of its own: see `runtime::clock`.

/// `CLOCK_MONOTONIC` in seconds, with the same rounding as `time.monotonic()`.
#[inline(always)]
pub(crate) fn monotonic() -> f64 {
    monotonic_nanos() as f64 / 1e9
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub(crate) fn monotonic_nanos() -> u64 {
    nanos(libc::CLOCK_MONOTONIC)
}

/// The clock of `std::time::Instant` in nanoseconds. Only differences mean something.
///
/// Reading it and subtracting takes a third of the instructions that `Instant` takes, which counts where a poll is as
/// short as the look at the clock.
#[inline(always)]
pub(crate) fn instant_nanos() -> u64 {
    nanos(cfg_select! {
        target_vendor = "apple" => libc::CLOCK_UPTIME_RAW,
        _ => libc::CLOCK_MONOTONIC,
    })
}

/// The processor time of this thread, in nanoseconds.
pub(crate) fn thread_nanos() -> u64 {
    nanos(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The processor time of another thread of this process, by the system's number of the thread, in nanoseconds. `None`
/// if there is no such thread, or the system has no such clock.
pub(crate) fn other_thread_nanos(thread: u64) -> Option<u64> {
    cfg_select! {
        any(target_os = "linux", target_os = "android") => {
            // The clock of a thread: CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED of the kernel's `posix-timers_types.h`.
            let clock = (!libc::clockid_t::try_from(thread).ok()? << 3) | 6;
            Some(nanos(clock)).filter(|now| *now != 0)
        }
        _ => {
            let _ = thread;
            None
        }
    }
}

/// The processor time of this process, in nanoseconds.
pub(crate) fn process_nanos() -> u64 {
    nanos(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The processor time of this process's other threads, in nanoseconds.
pub(crate) fn other_threads_nanos() -> u64 {
    // In this order the difference is not negative.
    let own = thread_nanos();
    process_nanos().saturating_sub(own)
}

#[inline(always)]
fn nanos(clock: libc::clockid_t) -> u64 {
    // It stays zero where the call fails: Miri has no clocks of processor time, and a sandbox may deny them.
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live place for the result.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

cfg_select! {
    all(target_arch = "x86_64", not(miri)) => {
        /// Whether the counter is a clock: it counts at one rate on all processors, also while they sleep. The
        /// processor says so, and the kernel, which would not use it as its clock source otherwise.
        pub(crate) fn counter_is_clock() -> bool {
            use std::arch::x86_64::__cpuid;

            // A bit in EDX of this leaf says that the counter's rate never changes.
            const LEAF: u32 = 0x8000_0007;
            const INVARIANT: u32 = 1 << 8;
            let invariant = __cpuid(0x8000_0000).eax >= LEAF && __cpuid(LEAF).edx & INVARIANT != 0;
            let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            let source = std::fs::read_to_string(source).unwrap_or_else(|_| "tsc".to_owned());
            invariant && ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"].contains(&source.trim())
        }

        /// A counter that is cheap to read, and grows steadily. If it is no clock, a difference is only an estimate.
        #[inline(always)]
        pub(crate) fn ticks() -> u64 {
            // SAFETY: every x86-64 processor has the instruction. The kernel can forbid it to a process, but then the
            // clocks of the C library fail as well, because they use it.
            unsafe { std::arch::x86_64::_rdtsc() }
        }

        /// How much the counter grows in a second, roughly: it has between 1 and 5 GHz.
        #[inline(always)]
        pub(crate) fn ticks_per_second() -> u64 {
            1 << 32
        }
    }
    all(target_arch = "aarch64", not(miri)) => {
        /// Whether the counter is a clock. It always is.
        pub(crate) fn counter_is_clock() -> bool {
            true
        }

        /// A counter that is cheap to read, and grows steadily.
        #[inline(always)]
        pub(crate) fn ticks() -> u64 {
            let ticks;
            // SAFETY: the virtual counter can be read in user mode on every system that we build for.
            unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
            ticks
        }

        /// How much the counter grows in a second: between 24 MHz and 1 GHz.
        #[inline(always)]
        pub(crate) fn ticks_per_second() -> u64 {
            let rate;
            // SAFETY: as in `ticks`. The register never changes.
            unsafe { std::arch::asm!("mrs {}, cntfrq_el0", out(reg) rate, options(pure, nomem, nostack)) };
            rate
        }
    }
    _ => {
        /// Whether the counter is a clock: there is none.
        pub(crate) fn counter_is_clock() -> bool {
            false
        }

        /// The system's clock: there is nothing that is cheaper to read.
        #[inline(always)]
        pub(crate) fn ticks() -> u64 {
            monotonic_nanos()
        }

        /// How much the counter grows in a second.
        #[inline(always)]
        pub(crate) fn ticks_per_second() -> u64 {
            1_000_000_000
        }
    }
}
