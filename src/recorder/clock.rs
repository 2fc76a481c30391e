//! The clock of events: the processor's counter where it is a clock, because reading it costs a third of a system
//! clock; otherwise `CLOCK_MONOTONIC`.

use crate::clock::{counter_is_clock, monotonic_nanos, ticks};

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
            Clock::Counter => ticks(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ticks_per_second;

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
        assert!(
            clock == Clock::System || (0.1..10.0).contains(&(rate / ticks_per_second() as f64)),
            "{rate}"
        );
        // The thread may be interrupted between the two reads.
        assert!(scale.nanos(ticks).abs_diff(system) < 5_000_000, "{} {system}", scale.nanos(ticks));
    }
}
