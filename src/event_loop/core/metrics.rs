//! The loop's counters. Only threads in a section of the loop write them, most often the loop's own. Any thread
//! may read them at any time.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::histogram::{self, Histogram, LOWEST};

/// A counter with one writer. Relaxed: each counter stands for itself.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
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

/// Counters since the loop was created. All times are nanoseconds, and points in time are of the monotonic clock.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) turns: Counter,
    /// Turns that Python code has stepped. They are not measured.
    pub(crate) stepped_turns: Counter,
    pub(crate) slow_turns: Counter,
    pub(crate) polls: Counter,
    pub(crate) blocking_polls: Counter,
    pub(crate) events: Counter,
    pub(crate) callbacks: Counter,
    pub(crate) timers_fired: Counter,
    pub(crate) messages: Counter,
    pub(crate) connections_accepted: Counter,
    pub(crate) accept_errors: Counter,
    /// Waits that began with a spin, and those of them that found something.
    pub(crate) spins: Counter,
    pub(crate) spin_hits: Counter,
    /// Time in spins that found nothing.
    pub(crate) spin_lost: Counter,
    /// Time in polls that could wait.
    pub(crate) idle: Counter,
    /// Time inside finished runs.
    pub(crate) running: Counter,
    /// When the current run began; 0 between runs.
    pub(crate) started: Counter,
    pub(crate) delay: Durations,
    pub(crate) turn_length: Durations,
    pub(crate) gil_wait: Durations,
}

impl Counters {
    /// Time inside `run_forever` up to `now`.
    pub(crate) fn running_at(&self, now: u64) -> u64 {
        let current = match self.started.get() {
            0 => 0,
            started => now.saturating_sub(started),
        };
        self.running.get() + current
    }

    /// How many delays, turn lengths and waits for the GIL there were, and their sums.
    fn totals(&self, now: u64) -> [(u64, u64); 3] {
        // The length of the current turn is not known yet.
        let current = u64::from(self.started.get() != 0);
        let ended = self.turns.get().saturating_sub(self.stepped_turns.get() + current);
        let active = self.running_at(now).saturating_sub(self.idle.get());
        [(ended, self.delay.sum.get()), (ended, active), (self.blocking_polls.get(), self.gil_wait.sum.get())]
    }

    /// Delays, turn lengths and waits for the GIL.
    pub(crate) fn histograms(&self, now: u64) -> [DurationsSnapshot; 3] {
        let [delay, turn_length, gil_wait] = self.totals(now);
        [self.delay.snapshot(delay), self.turn_length.snapshot(turn_length), self.gil_wait.snapshot(gil_wait)]
    }

    /// Forgets the durations so far.
    pub(crate) fn reset_histograms(&self, now: u64) {
        let [delay, turn_length, gil_wait] = self.totals(now);
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

/// The numbers of [`Durations`] at one moment. The sum is in nanoseconds.
pub(crate) struct DurationsSnapshot {
    pub(crate) histogram: histogram::Snapshot,
    pub(crate) sum: u64,
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

    fn snapshot(&self, (number, sum): (u64, u64)) -> DurationsSnapshot {
        let mut snapshot = self.long.snapshot();
        let long: u64 = snapshot.counts.iter().sum();
        snapshot.counts[0] += number.saturating_sub(self.forgotten[0].get()).saturating_sub(long);
        if snapshot.max == 0 && snapshot.counts[0] > 0 {
            snapshot.max = LOWEST;
        }
        DurationsSnapshot { histogram: snapshot, sum: sum.saturating_sub(self.forgotten[1].get()) }
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
        for delay in [1, LOWEST, 3 * LOWEST] {
            counters.delay.sum.add(delay);
            counters.delay.note(delay);
        }
        let [delay, turn_length, gil_wait] = counters.histograms(0);
        assert_eq!((delay.histogram.counts[0], delay.histogram.counts[1]), (8, 1));
        assert_eq!((delay.sum, delay.histogram.max), (4 * LOWEST + 1, 3 * LOWEST));
        assert_eq!((turn_length.histogram.counts[0], turn_length.histogram.max), (10, LOWEST));
        assert_eq!((gil_wait.histogram.counts[0], gil_wait.histogram.max), (0, 0));
    }

    #[test]
    fn a_reset_forgets_all_durations() {
        let counters = Counters::default();
        counters.turns.add(10);
        counters.delay.sum.add(LOWEST);
        counters.delay.note(LOWEST);
        counters.reset_histograms(0);
        counters.turns.add(1);
        let [delay, ..] = counters.histograms(0);
        assert_eq!((delay.histogram.counts.iter().sum::<u64>(), delay.sum), (1, 0));
    }
}
