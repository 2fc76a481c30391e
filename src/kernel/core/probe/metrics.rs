//! The loop's counters: a line of the table makes a counter, and its name, kind and help for Python and for monitoring
//! systems. Only threads in a section of the loop write them, most often the loop's own. Any thread may read them at
//! any time.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::super::fd_table::SourceKind;
use crate::histogram::{self, Histogram, LOWEST, Snapshot};
use crate::metrics::{Cell, Figure, Metric, Value, metrics};

/// A counter with one writer. Relaxed: each counter stands for itself.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    #[inline(always)]
    pub(crate) fn add(&self, by: u64) {
        histogram::add(&self.0, by);
    }
}

metrics! {
    /// The work of a loop since it was created, and the work that waits. Times are measured on the monotonic clock.
    #[derive(Debug, Default)]
    pub(crate) struct LoopFigures;

    /// The cells of a loop. The gauges are as `observe/gauges.rs` has last counted them.
    #[derive(Debug, Default)]
    #[repr(C)]
    pub(crate) struct Counters {
        /// Turns that Python code has stepped. They are not measured.
        stepped_turns: Counter,
        /// How many turns had begun when the last one ended.
        ended_turns: Counter,
        /// Delays of the last callback or event of a turn, which were counted beside that of the turn.
        late_items: Counter,
        /// When the current run began; 0 between runs.
        started: Counter,
    }

    counter running: Duration in Counter = "Time inside run_forever";
    counter idle: Duration in Counter = "Time in which the loop waited for events, timers and other threads";
    counter turns: u64 in Counter = "Iterations of the loop";
    counter slow_turns: u64 in Counter = "Turns that took longer than loop.slow_turn_duration";
    counter polls: u64 in Counter = "System calls that ask for events";
    counter blocking_polls: u64 in Counter = "Polls that released the GIL";
    counter io_events: u64 in Counter = "Events of descriptors";
    counter callbacks: u64 in Counter = "Callbacks that were run, task steps included";
    counter timers_fired: u64 in Counter = "Timers that came due";
    counter messages: u64 in Counter = "Messages of the Rust runtime to the loop";
    counter connections_accepted: u64 in Counter = "Connections that listeners of the loop have accepted";
    counter accept_errors: u64 in Counter = "Failed attempts to accept a connection";
    counter spins: u64 in Counter = "Waits that began with a spin";
    counter spin_hits: u64 in Counter = "Spins that found an event";
    counter spin_lost: Duration in Counter = "Time in spins that found nothing";
    counter busy_waits: u64 in Counter = "Times that a task or callback ran again and again while the loop waited for nothing else";
    histogram delay: Snapshot in Durations = "How long the work of a turn had been ready when the loop came to it";
    histogram turn_length: Snapshot in Durations = "Lengths of the turns";
    histogram gil_wait: Snapshot in Durations = "Waits for the GIL after polls";
    gauge ready: u64 in Counter = "Callbacks that are ready to run";
    gauge timers: u64 in Counter = "Timers that wait";
    gauge transports: Transports in TransportCounters = "Open transports and listeners";
    gauge write_buffer_bytes: u64 in Counter = "Bytes that transports have buffered";
    gauge paused_writers: u64 in Counter = "Transports whose protocol has been told to pause writing";
    gauge paused_readers: u64 in Counter = "Transports whose protocol has paused reading";
    gauge executor_jobs: u64 in Counter = "Jobs in executors that the loop awaits";
    gauge executor_queued: u64 in Counter = "Jobs of the default executor that have not begun to run";
    gauge lookups: u64 in Counter = "Name lookups that run or wait for a thread";
}

/// The metrics of a loop that are made of others.
pub(crate) const ADDED: [Metric; 2] = [
    added("running", "gauge", "1 while a thread is in run_forever"),
    added(
        "active_seconds",
        "counter",
        "Time inside run_forever in which the loop had work, waits for the GIL included",
    ),
];

const fn added(field: &'static str, kind: &'static str, help: &'static str) -> Metric {
    Metric { field, suffix: "", kind, help }
}

/// How many transports and listeners there are of each kind, in the order of [`SourceKind::COUNTED`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct TransportCounters(pub(crate) [Counter; SourceKind::COUNTED.len()]);

#[derive(Debug, Default)]
pub(crate) struct Transports([u64; SourceKind::COUNTED.len()]);

impl Figure for Transports {
    fn value(&self) -> Value<'_> {
        Value::Labelled(SourceKind::COUNTED.into_iter().map(|(_, name)| name).zip(self.0).collect())
    }
}

impl Cell<Transports> for TransportCounters {
    fn read(&self) -> Transports {
        Transports(self.0.each_ref().map(Counter::get))
    }
}

impl Cell<u64> for Counter {
    fn read(&self) -> u64 {
        self.get()
    }
}

impl Cell<Duration> for Counter {
    fn read(&self) -> Duration {
        Duration::from_nanos(self.get())
    }
}

impl Cell<Snapshot> for Durations {
    fn read(&self) -> Snapshot {
        self.long.snapshot(self.sum.get())
    }
}

impl LoopFigures {
    /// The figures at `now`. For so many nanoseconds, the loop has been waiting in a poll that is not counted yet.
    ///
    /// Another thread may change the numbers meanwhile. No number makes this panic.
    pub(crate) fn at(now: u64, waiting: u64, cells: &Counters) -> LoopFigures {
        let mut figures = LoopFigures::read(cells);
        figures.running = Duration::from_nanos(cells.running_at(now));
        figures.idle = (figures.idle + Duration::from_nanos(waiting)).min(figures.running);
        let [delay, turn_length, gil_wait] = cells.totals(now, waiting);
        cells.delay.complete(&mut figures.delay, delay);
        cells.turn_length.complete(&mut figures.turn_length, turn_length);
        cells.gil_wait.complete(&mut figures.gil_wait, gil_wait);
        figures
    }

    /// Time inside `run_forever` in which the loop had work.
    pub(crate) fn active(&self) -> Duration {
        self.running.saturating_sub(self.idle)
    }
}

impl Counters {
    /// Time inside `run_forever` up to `now`.
    pub(crate) fn running_at(&self, now: u64) -> u64 {
        let current = match self.started.get() {
            0 => 0,
            started => now.saturating_sub(started),
        };
        self.running.get().saturating_add(current)
    }

    /// How many delays, turn lengths and waits for the GIL there were, and their sums.
    fn totals(&self, now: u64, waiting: u64) -> [(u64, u64); 3] {
        // The delay of a turn is known when it begins, and its length when it ends.
        let [begun, ended] = [&self.turns, &self.ended_turns]
            .map(|turns| turns.get().saturating_sub(self.stepped_turns.get()));
        let delays = begun.saturating_add(self.late_items.get());
        let active = self.running_at(now).saturating_sub(self.idle.get().saturating_add(waiting));
        [
            (delays, self.delay.sum.get()),
            (ended, active),
            (self.blocking_polls.get(), self.gil_wait.sum.get()),
        ]
    }

    /// Forgets the durations so far.
    pub(crate) fn reset_histograms(&self, now: u64) {
        let [delay, turn_length, gil_wait] = self.totals(now, 0);
        self.delay.reset(delay);
        self.turn_length.reset(turn_length);
        self.gil_wait.reset(gil_wait);
    }
}

/// A histogram that counts only what does not fall into its first bucket: the loop counts all durations anyway, so that
/// the rest is the first bucket.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Durations {
    pub(crate) sum: Counter,
    /// The number and the sum at the last reset.
    forgotten: [Counter; 2],
    long: Histogram,
}

impl Durations {
    /// Counts a duration if it does not fall into the first bucket. The caller adds it to the sum.
    #[inline(always)]
    pub(crate) fn note(&self, nanos: u64) {
        if nanos >= LOWEST {
            self.note_long(nanos);
        }
    }

    #[cold]
    fn note_long(&self, nanos: u64) {
        self.long.count(nanos);
    }

    /// Adds the first bucket to a snapshot, and takes away what was forgotten.
    fn complete(&self, snapshot: &mut Snapshot, (number, sum): (u64, u64)) {
        let long = snapshot.counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        let short = number.saturating_sub(self.forgotten[0].get()).saturating_sub(long);
        snapshot.counts[0] = snapshot.counts[0].saturating_add(short);
        if snapshot.max == 0 && snapshot.counts[0] > 0 {
            snapshot.max = LOWEST;
        }
        snapshot.sum = sum.saturating_sub(self.forgotten[1].get());
    }

    fn reset(&self, (number, sum): (u64, u64)) {
        self.forgotten[0].set(number);
        self.forgotten[1].set(sum);
        self.long.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bucket_has_what_was_not_counted_as_long() {
        let counters = Counters::default();
        counters.turns.add(10);
        counters.ended_turns.add(10);
        for delay in [1, LOWEST, 3 * LOWEST] {
            counters.delay.sum.add(delay);
            counters.delay.note(delay);
        }
        let LoopFigures { delay, turn_length, gil_wait, .. } = LoopFigures::at(0, 0, &counters);
        assert_eq!((delay.counts[0], delay.counts[1]), (8, 1));
        assert_eq!((delay.sum, delay.max), (4 * LOWEST + 1, 3 * LOWEST));
        assert_eq!((turn_length.counts[0], turn_length.max), (10, LOWEST));
        assert_eq!((gil_wait.counts[0], gil_wait.max), (0, 0));
    }

    #[test]
    fn a_reset_forgets_all_durations() {
        let counters = Counters::default();
        counters.turns.add(10);
        counters.delay.sum.add(LOWEST);
        counters.delay.note(LOWEST);
        counters.reset_histograms(0);
        counters.turns.add(1);
        let delay = LoopFigures::at(0, 0, &counters).delay;
        assert_eq!((delay.counts.iter().sum::<u64>(), delay.sum), (1, 0));
    }
}
