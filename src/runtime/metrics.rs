//! The counters of a runtime.
//!
//! Each worker counts for itself, without atomic read-modify-writes, on cache lines that only it writes. A
//! snapshot adds the workers up, so its numbers may be a moment apart from each other.
//!
//! The delay from a wake to the poll is that of a sample (`sampler.rs`).

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::blocking::PoolMetrics;
use super::clock;
use super::executor::Shared;
use super::shim::AtomicU64;
use crate::histogram::{self, Snapshot};
use crate::metrics::{Cell, Figure, Sum, Value, metrics};

/// A counter with one writer.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the one writer may call this.
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed) + n, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The spins of the threads that have waited in the driver, one at a time.
#[derive(Debug, Default)]
pub(super) struct SpinCounters {
    begun: Counter,
    hits: Counter,
    /// In nanoseconds.
    lost: Counter,
}

impl SpinCounters {
    /// Counts a spin that has ended after so long. Only the thread that has the driver may call this.
    pub(super) fn note(&self, found: bool, nanos: u64) {
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
pub(super) struct Durations {
    sum: Counter,
    histogram: histogram::Histogram,
}

impl Durations {
    /// Counts a duration in nanoseconds as if it had occurred so many `times`. Only the one writer may call this.
    #[inline]
    pub(super) fn note(&self, nanos: u64, times: u64) {
        self.sum.add(nanos.wrapping_mul(times));
        self.histogram.count_times(nanos, times);
    }
}

/// When a worker began and ended, and how long it has slept, in nanoseconds of the clock. The worker writes all
/// but `reported`.
#[derive(Debug, Default)]
pub(super) struct Presence {
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
    pub(super) fn begins(&self, now: u64) {
        self.began.store(now, Relaxed);
    }

    pub(super) fn falls_asleep(&self, now: u64) {
        self.slept.store(ASLEEP | now.wrapping_sub(self.slept.load(Relaxed)), Relaxed);
    }

    pub(super) fn wakes_up(&self, now: u64) {
        self.slept.store(now.wrapping_sub(self.slept.load(Relaxed) & !ASLEEP), Relaxed);
    }

    pub(super) fn ends(&self, now: u64) {
        self.ended.store(now, Relaxed);
    }

    /// Returns how long the worker was awake, and how long it slept, up to now or to its end. Neither ever falls.
    fn busy_and_idle(&self, clock: impl Fn() -> u64) -> (Duration, Duration) {
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
        self.0.counts.iter().sum()
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
        let rank = (self.count() as f64 * percent / 100.0).max(1.0);
        let mut upto = 0;
        for (count, bound) in self.counts().iter().zip(Histogram::bounds()) {
            upto += count;
            if upto as f64 >= rank {
                return bound.min(self.max());
            }
        }
        self.max()
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

metrics! {
    /// The work of one worker, in a snapshot. All is zero for a worker that was not needed so far.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct WorkerMetrics;

    /// The counters of one worker.
    #[derive(Debug, Default)]
    pub(super) struct Counters {
        presence: Presence,
    }

    /// A snapshot of a runtime's counters, summed over its workers and for each of them.
    ///
    /// Counters and times never fall.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Metrics(shared: &Shared, pool: &PoolMetrics, tasks: (u64, u64)) {
        /// Each worker's part.
        per_worker,
    }

    both {
        /// For a current-thread runtime, that includes the time in which no thread was in `block_on`.
        counter busy: Duration = "Time workers were awake, waits for the GIL included";
        counter idle: Duration = "Time workers slept";
        counter polls: u64 in Counter = "Polls of tasks by workers";
        /// They came from the LIFO slot.
        counter lifo_hits: u64 in Counter = "Polls that took the task that the task before had woken last";
        counter steals: u64 in Counter = "Batches of tasks that a worker took from another";
        counter parks: u64 in Counter = "How often a worker went to sleep";
        counter wakeups: u64 in Counter = "How often a worker woke up";
        /// It is the time from the wake, or from the spawn, to the poll.
        ///
        /// It is measured for a sample of the wakes: for each, if a thread wakes rarely, and for one in 240 on
        /// average, if it wakes often. A sample counts as often as there are wakes for which it stands, so the counts
        /// approach those of all wakes. The maximum is the longest delay in the sample. The precision is a
        /// microsecond.
        ///
        /// A socket or a timer wakes its task when a worker looks at the driver. The time before that look is not
        /// included, nor are the tasks of a [`LocalSet`](super::LocalSet) and the futures of
        /// [`block_on`](super::Runtime::block_on), which have no place in a queue.
        histogram delay: Histogram in Durations = "How long tasks had been ready when a worker polled them";
    }

    part {
        /// The one in the LIFO slot is not included.
        gauge queue_depth: usize = "Tasks in the worker's own queue";
    }

    whole {
        gauge workers: usize = "Worker threads, including those that were not needed so far", shared.workers();
        counter uptime: Duration = "Time since the runtime started", shared.started.elapsed();
        /// Blocking jobs are not included.
        counter tasks_spawned: u64 = "Tasks that were spawned", tasks.0;
        counter tasks_completed: u64 = "Tasks that have completed, panicked or were cancelled", tasks.1;
        gauge tasks_live: u64 = "Tasks that are alive", tasks.0.saturating_sub(tasks.1);
        counter injected: u64 = "Tasks that other threads than workers have spawned or woken", shared.injected();
        gauge injector_depth: usize = "Tasks from outside the workers that no worker has taken",
            shared.injector_depth();
        /// Those in the LIFO slots are not included.
        gauge local_queue_depth: usize = "Tasks in the workers' own queues",
            per_worker.iter().map(|worker| worker.queue_depth).sum();
        /// A spin is polls in close succession, before the worker goes to sleep.
        counter spins: u64 = "Waits of workers that began with a spin", shared.driver.spins.begun.get();
        counter spin_hits: u64 = "Spins of workers that found something", shared.driver.spins.hits.get();
        /// It is part of `idle`.
        counter spin_lost: Duration = "Time in spins of workers that found nothing",
            Duration::from_nanos(shared.driver.spins.lost.get());
        counter timers_fired: u64 = "Sleeps that came due", shared.driver.timers.fired();
        gauge timers_armed: usize = "Sleeps that wait", shared.driver.timers.len();
        gauge sockets: usize = "Sockets of the runtime", shared.driver.registrations.len();
        gauge blocking_threads: usize = "Threads of the pool for blocking jobs", pool.threads;
        gauge blocking_idle_threads: usize = "Threads of the pool that wait for a job", pool.idle_threads;
        gauge blocking_queue_depth: usize = "Blocking jobs that wait for a thread", pool.queue_depth;
        /// Those are included that were cancelled while they waited.
        counter blocking_jobs: u64 = "Blocking jobs that came to a thread", pool.wait.count();
        /// Every job is counted.
        histogram blocking_wait: Histogram = "How long blocking jobs had waited for a thread", pool.wait.clone();
    }
}

impl WorkerMetrics {
    pub(super) fn of(counters: &Counters, queue_depth: usize) -> WorkerMetrics {
        let (busy, idle) = counters.presence.busy_and_idle(clock::nanos);
        WorkerMetrics { busy, idle, queue_depth, ..WorkerMetrics::read(counters) }
    }
}

impl Metrics {
    pub(super) fn of(shared: &Shared) -> Metrics {
        Metrics::read(
            shared,
            &shared.pool.metrics(),
            shared.owned.counts(),
            shared.worker_metrics().collect(),
        )
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
