//! Measurements: counters, durations, and how long a worker was awake.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::super::shim::AtomicU64;
use crate::histogram::{self, Snapshot};
use crate::metrics::{Cell, Figure, Sum, Value};

/// A counter with one writer.
#[derive(Debug, Default)]
pub(in super::super) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the one writer may call this.
    pub(in super::super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed) + n, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The spins of the threads that have waited in the driver, one at a time.
#[derive(Debug, Default)]
pub(in super::super) struct SpinCounters {
    pub(super) begun: Counter,
    pub(super) hits: Counter,
    /// In nanoseconds.
    pub(super) lost: Counter,
}

impl SpinCounters {
    /// Counts a spin that has ended after so long. Only the thread that has the driver may call this.
    pub(in super::super) fn note(&self, found: bool, nanos: u64) {
        self.begun.add(1);
        if found {
            self.hits.add(1);
        } else {
            self.lost.add(nanos);
        }
    }
}

/// Durations that one writer measures.
#[derive(Debug, Default)]
pub(in super::super) struct Durations {
    sum: Counter,
    histogram: histogram::Histogram,
}

impl Durations {
    /// Counts a duration in nanoseconds as if it had occurred so many `times`. Only the one writer may call this.
    #[inline]
    pub(in super::super) fn note(&self, nanos: u64, times: u64) {
        self.sum.add(nanos.wrapping_mul(times));
        self.histogram.count_times(nanos, times);
    }
}

/// When a worker began and ended, and how long it has slept, in nanoseconds of the clock. The worker writes all
/// but `reported`.
#[derive(Debug, Default)]
pub(in super::super) struct Presence {
    /// 0 if the worker has not begun.
    began: AtomicU64,
    /// 0 if it has not ended.
    ended: AtomicU64,
    /// While the worker is awake: how long it has slept. While it sleeps: `ASLEEP`, and when it would have fallen
    /// asleep if it had been awake until then. So one word always says how long it was awake, and how long asleep.
    slept: AtomicU64,
    /// The longest times that a snapshot had, awake and asleep.
    reported: [AtomicU64; 2],
}

const ASLEEP: u64 = 1 << 63;

impl Presence {
    pub(in super::super) fn begins(&self, now: u64) {
        self.began.store(now, Relaxed);
    }

    pub(in super::super) fn falls_asleep(&self, now: u64) {
        self.slept.store(ASLEEP | now.wrapping_sub(self.slept.load(Relaxed)), Relaxed);
    }

    pub(in super::super) fn wakes_up(&self, now: u64) {
        self.slept.store(now.wrapping_sub(self.slept.load(Relaxed) & !ASLEEP), Relaxed);
    }

    pub(in super::super) fn ends(&self, now: u64) {
        self.ended.store(now, Relaxed);
    }

    /// Returns how long the worker was awake, and how long it slept, up to now or to its end. Neither ever falls.
    pub(super) fn busy_and_idle(&self, clock: impl Fn() -> u64) -> (Duration, Duration) {
        let (slept, now) = loop {
            let (slept, now) = (self.slept.load(Relaxed), clock());
            // If it fell asleep or woke up in between, the two do not belong together.
            if slept == self.slept.load(Relaxed) {
                break (slept, now);
            }
        };
        let (began, ended) = (self.began.load(Relaxed), self.ended.load(Relaxed));
        if began == 0 {
            return (Duration::ZERO, Duration::ZERO);
        }
        let now = if ended == 0 { now } else { ended };
        let awake_until = if slept & ASLEEP == 0 { now.saturating_sub(slept) } else { slept & !ASLEEP };
        // The worker reads the clock some instructions before it writes the time. A snapshot in between has added
        // these to the old state, and the next one would have less.
        let report = |of: usize, later: u64, earlier| {
            let nanos = later.saturating_sub(earlier);
            Duration::from_nanos(self.reported[of].fetch_max(nanos, Relaxed).max(nanos))
        };
        (report(0, awake_until, began), report(1, now, awake_until))
    }
}

/// How often durations of each length have occurred, at one moment.
///
/// The buckets are logarithmic: four for each doubling, from 131 µs, below which all durations share the first
/// bucket, to 69 s, above which all share the last.
///
/// ```
/// use wakeloop::runtime::{Builder, Histogram};
///
/// let rt = Builder::new().worker_threads(1).build()?;
/// rt.block_on(rt.spawn_blocking(|| ())).unwrap();
/// let wait: Histogram = rt.metrics().blocking_wait;
/// assert_eq!(wait.count(), 1);
/// assert!(wait.percentile(99.0) <= wait.max());
/// assert_eq!(wait.counts().len(), Histogram::bounds().count() + 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Histogram(Snapshot);

impl Histogram {
    /// Returns the bounds between the buckets: bucket `n` counts durations from bound `n - 1` on, below bound
    /// `n`. There is one bound less than there are buckets, because the last bucket has no upper bound.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        histogram::bounds().map(Duration::from_nanos)
    }

    /// Returns how many durations each bucket has counted.
    pub fn counts(&self) -> &[u64] {
        &self.0.counts
    }

    /// Returns how many durations were counted.
    pub fn count(&self) -> u64 {
        self.0.count()
    }

    /// Returns the sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.0.sum)
    }

    /// Returns the longest duration.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max)
    }

    /// Returns the duration that `percent` of all durations do not exceed: the upper bound of a bucket, or the
    /// longest duration if that is less. Zero if nothing was counted.
    ///
    /// # Panics
    /// If `percent` is not between 0 and 100.
    pub fn percentile(&self, percent: f64) -> Duration {
        assert!((0.0..=100.0).contains(&percent), "percent must be between 0 and 100");
        Duration::from_nanos(self.0.percentile(percent))
    }
}

impl From<&Durations> for Histogram {
    fn from(durations: &Durations) -> Histogram {
        Histogram(durations.histogram.snapshot(durations.sum.get()))
    }
}

impl Figure for Histogram {
    fn value(&self) -> Value<'_> {
        self.0.value()
    }
}

impl Sum for Histogram {
    fn add(&mut self, part: &Histogram) {
        self.0.merge(&part.0);
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("p50", &self.percentile(50.0))
            .field("p99", &self.percentile(99.0))
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

impl Cell<u64> for Counter {
    fn read(&self) -> u64 {
        self.get()
    }
}

impl Cell<Histogram> for Durations {
    fn read(&self) -> Histogram {
        Histogram::from(self)
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_busy_or_idle_from_its_beginning_to_its_end() {
        let presence = Presence::default();
        let at = |now| {
            let (busy, idle) = presence.busy_and_idle(|| now);
            (busy.as_nanos(), idle.as_nanos())
        };
        assert_eq!(at(50), (0, 0));
        presence.begins(100);
        assert_eq!((at(100), at(130)), ((0, 0), (30, 0)));
        presence.falls_asleep(150);
        assert_eq!((at(150), at(190)), ((50, 0), (50, 40)));
        presence.wakes_up(200);
        assert_eq!((at(200), at(210)), ((50, 50), (60, 50)));
        presence.falls_asleep(210);
        presence.wakes_up(230);
        assert_eq!((at(230), at(231)), ((60, 70), (61, 70)));
        presence.ends(240);
        assert_eq!((at(240), at(1000)), ((70, 70), (70, 70)));
    }

    #[test]
    fn a_snapshot_while_a_worker_falls_asleep_does_not_make_the_next_one_less() {
        let presence = Presence::default();
        presence.begins(100);
        assert_eq!(presence.busy_and_idle(|| 110).0.as_nanos(), 10);
        presence.falls_asleep(107);
        assert_eq!(presence.busy_and_idle(|| 120).0.as_nanos(), 10);
        assert_eq!(presence.busy_and_idle(|| 120).1.as_nanos(), 13);
    }

    #[test]
    fn a_percentile_is_the_upper_bound_of_its_bucket() {
        let durations = Durations::default();
        durations.note(1000, 98);
        durations.note(1_000_000, 2);
        let histogram = Histogram::from(&durations);
        let bounds: Vec<_> = Histogram::bounds().collect();
        assert_eq!(histogram.percentile(0.0), bounds[0]);
        assert_eq!(histogram.percentile(98.0), bounds[0]);
        assert_eq!(histogram.percentile(99.0), Duration::from_millis(1));
        assert_eq!((histogram.count(), histogram.max()), (100, Duration::from_millis(1)));
        assert_eq!(histogram.sum(), Duration::from_micros(2098));
        assert_eq!(Histogram::default().percentile(50.0), Duration::ZERO);
    }
}
