//! The clock of events: the processor's counter where it is a clock, because reading it costs a third of a system
//! clock; otherwise `CLOCK_MONOTONIC`.
//!
//! A counter is a clock if it counts at one rate on all processors, also while they sleep. On x86-64 the processor says
//! so, and the kernel, which would not use it as its clock source otherwise. On AArch64 it always is.

use std::mem::MaybeUninit;

/// What [`Clock::now`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The processor's counter.
    Counter,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    System,
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) ticks: u64,
    /// `CLOCK_MONOTONIC`.
    pub(crate) nanos: u64,
}

/// Converts ticks to nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    anchor: Moment,
    nanos_per_tick: f64,
}

impl Clock {
    /// The best clock of this system.
    pub(crate) fn best() -> Clock {
        if counter_is_clock() { Clock::Counter } else { Clock::System }
    }

    /// The time in ticks.
    #[inline(always)]
    pub(crate) fn now(self) -> u64 {
        match self {
            Clock::Counter => counter(),
            Clock::System => monotonic_nanos(),
        }
    }

    /// This moment on both clocks.
    pub(crate) fn moment(self) -> Moment {
        // A thread that is interrupted between the two reads would take them as one moment: the fastest of some tries
        // was not.
        let mut best = (u64::MAX, Moment { ticks: 0, nanos: 0 });
        for _ in 0..8 {
            let (before, nanos, after) = (self.now(), monotonic_nanos(), self.now());
            let took = after.saturating_sub(before);
            if took < best.0 {
                best = (took, Moment { ticks: before + took / 2, nanos });
            }
        }
        best.1
    }
}

impl Scale {
    /// The scale between two moments. It is exact at the later one, near which the events are.
    pub(crate) fn between(start: Moment, end: Moment) -> Scale {
        let (ticks, nanos) = (end.ticks.saturating_sub(start.ticks), end.nanos.saturating_sub(start.nanos));
        Scale { anchor: end, nanos_per_tick: if ticks == 0 { 1.0 } else { nanos as f64 / ticks as f64 } }
    }

    /// A time in nanoseconds.
    pub(crate) fn nanos(&self, ticks: u64) -> u64 {
        let back = (self.anchor.ticks as i64).wrapping_sub(ticks as i64) as f64 * self.nanos_per_tick;
        (self.anchor.nanos as i64).saturating_sub(back.round() as i64).max(0) as u64
    }
}

fn monotonic_nanos() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: this clock exists on every system, so the call succeeds and initialises `now`.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

cfg_select! {
    all(target_arch = "x86_64", not(miri)) => {
        fn counter_is_clock() -> bool {
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
        pub(crate) fn counter() -> u64 {
            // SAFETY: every x86-64 processor has the instruction. The kernel can forbid it to a process, but then the
            // clocks of the C library fail as well, because they use it.
            unsafe { std::arch::x86_64::_rdtsc() }
        }

        /// How much the counter grows in a second, roughly: it has between 1 and 5 GHz.
        #[inline(always)]
        pub(crate) fn counter_rate() -> u64 {
            1 << 32
        }
    }
    all(target_arch = "aarch64", not(miri)) => {
        fn counter_is_clock() -> bool {
            true
        }

        /// A counter that is cheap to read, and grows steadily.
        #[inline(always)]
        pub(crate) fn counter() -> u64 {
            let ticks;
            // SAFETY: the virtual counter can be read in user mode on every system that we build for.
            unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
            ticks
        }

        /// How much the counter grows in a second: between 24 MHz and 1 GHz.
        #[inline(always)]
        pub(crate) fn counter_rate() -> u64 {
            let rate;
            // SAFETY: as in `counter`. The register never changes.
            unsafe { std::arch::asm!("mrs {}, cntfrq_el0", out(reg) rate, options(pure, nomem, nostack)) };
            rate
        }
    }
    _ => {
        fn counter_is_clock() -> bool {
            false
        }

        /// The system's clock: there is nothing that is cheaper to read.
        #[inline(always)]
        pub(crate) fn counter() -> u64 {
            monotonic_nanos()
        }

        /// How much the counter grows in a second.
        #[inline(always)]
        pub(crate) fn counter_rate() -> u64 {
            1_000_000_000
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_exact_at_both_ends_and_goes_beyond_them() {
        let start = Moment { ticks: 1_000, nanos: 50_000 };
        let scale = Scale::between(start, Moment { ticks: 3_000, nanos: 51_000 });
        assert_eq!(
            [1_000, 2_000, 3_000, 3_010].map(|ticks| scale.nanos(ticks)),
            [50_000, 50_500, 51_000, 51_005]
        );
        assert_eq!(Scale::between(start, start).nanos(900), 49_900);
        assert_eq!(Scale::between(start, start).nanos(0), 49_000);
    }

    #[test]
    fn ticks_agree_with_the_system_clock() {
        let clock = Clock::best();
        let start = clock.moment();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (ticks, system) = (clock.now(), monotonic_nanos());
        let scale = Scale::between(start, clock.moment());
        let rate = 1e9 / scale.nanos_per_tick;
        assert!(clock == Clock::System || (0.1..10.0).contains(&(rate / counter_rate() as f64)), "{rate}");
        // The thread may be interrupted between the two reads.
        assert!(scale.nanos(ticks).abs_diff(system) < 5_000_000, "{} {system}", scale.nanos(ticks));
    }
}
