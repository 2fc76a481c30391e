//! Measures the turns of a loop with one clock read for each.
//!
//! - A turn begins where the poll ends, and ends where the next turn begins. The clock is read there anyway.
//! - Turns that follow another without a poll are not measured, because together they take less than 150 µs.
//! - The **delay** of a turn is how long the work that it found had been ready. Callbacks were ready since the previous
//!   turn began at the latest, and so were events that a poll reported at once. Other events were ready when the poll
//!   ended, and a timer at its deadline. If the turn has several callbacks or events, the last one has also waited for
//!   those before it.
//! - Between the callbacks of a turn only [`ticks`] are read, and only in small batches.
//!
//! All times are nanoseconds of the monotonic clock.

use std::cell::Cell;

use crate::clock::{ticks, ticks_per_second};

/// `loop.slow_turn_duration`, unless the program sets another.
pub(crate) const SLOW_TURN: u64 = 250_000_000;
/// While somebody looks at the loops, they keep callbacks from this length on.
const LONG_CALLBACK: u64 = 5_000_000;
/// For so long after a slow turn in which no callback could be named, the callbacks of large batches are timed one by
/// one.
const NAME_EACH: u64 = 60_000_000_000;
/// Slow turns are logged at most once per interval.
const REPORT_INTERVAL: u64 = 1_000_000_000;
/// The binary logarithm of the part of a second from which on an item of a batch is looked at: 8 milliseconds, less than
/// the shortest limit that makes sense. Where the counter's rate is only known roughly, they may be some more.
const LONG: u32 = 7;

/// The largest batch whose callbacks are timed one by one.
const SMALL_BATCH: usize = 16;

/// The callbacks or events that the loop handles now, and how they are timed.
#[derive(Debug)]
pub(crate) enum Batch {
    /// There is one, and nothing else in the turn. The clock is read after it; 0 before that.
    One(u64),
    /// One by one.
    Each(Laps),
    /// Several together.
    Parts(Laps),
}

/// When a batch began, when its last item or part began, and when that ended, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laps {
    start: u64,
    last: u64,
    end: u64,
}

impl Laps {
    #[inline(always)]
    pub(crate) fn begin() -> Laps {
        let now = ticks();
        Laps { start: now, last: now, end: now }
    }

    /// An item has ended, or several. Returns how long they took if that was long, in ticks.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<u64> {
        self.last = std::mem::replace(&mut self.end, ticks());
        let taken = self.end.wrapping_sub(self.last);
        (taken > ticks_per_second() >> LONG).then_some(taken)
    }
}

#[derive(Debug)]
pub(crate) struct TurnMeter {
    /// When the turn began: the end of its poll.
    mark: Cell<u64>,
    /// How long the work of the turn had been ready when the turn began.
    wait: Cell<u64>,
    /// How long the last callback or event of a batch has waited for the others, in ticks.
    waited_ticks: Cell<u64>,
    /// From this length on, a turn is slow.
    limit: Cell<u64>,
    /// The program or the environment has set the limit: it wants slow turns to be logged.
    logs: Cell<bool>,
    /// From this length on, a callback is slow, or kept while somebody looks at the loops.
    noted: Cell<u64>,
    /// A point in time on both clocks.
    origin: Cell<(u64, u64)>,
    /// The number of the last turn in which a slow callback was named.
    named_turn: Cell<u64>,
    name_each_until: Cell<u64>,
    /// When the next report may be logged, and how many slow turns were not reported since the last one.
    next_report: Cell<u64>,
    unreported: Cell<u64>,
}

impl Default for TurnMeter {
    fn default() -> TurnMeter {
        TurnMeter {
            mark: Cell::new(0),
            wait: Cell::new(0),
            waited_ticks: Cell::new(0),
            limit: Cell::new(SLOW_TURN),
            logs: Cell::new(false),
            noted: Cell::new(LONG_CALLBACK),
            origin: Cell::new((0, 0)),
            named_turn: Cell::new(0),
            name_each_until: Cell::new(0),
            next_report: Cell::new(0),
            unreported: Cell::new(0),
        }
    }
}

impl TurnMeter {
    /// A run begins.
    pub(crate) fn begin_run(&self, now: u64, ticks: u64) {
        self.mark.set(now);
        self.wait.set(0);
        self.origin.set((now, ticks));
    }

    /// The poll of a turn is over.
    #[inline(always)]
    pub(crate) fn begin_turn(&self, now: u64) {
        self.mark.set(now);
    }

    /// The length of the turn up to `now`.
    #[inline(always)]
    pub(crate) fn elapsed(&self, now: u64) -> u64 {
        now.wrapping_sub(self.mark.get())
    }

    #[inline(always)]
    pub(crate) fn is_slow(&self, nanos: u64) -> bool {
        nanos >= self.limit.get()
    }

    /// Is a callback of this length slow, or kept while somebody looks at the loops?
    #[inline(always)]
    pub(crate) fn is_noted(&self, nanos: u64) -> bool {
        nanos >= self.noted.get()
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.get()
    }

    /// Sets the length of a slow turn.
    pub(crate) fn set_limit(&self, nanos: u64) {
        self.limit.set(nanos);
        self.noted.set(nanos.min(LONG_CALLBACK));
    }

    // -- delay

    #[inline(always)]
    pub(crate) fn wait(&self) -> u64 {
        self.wait.get()
    }

    #[inline(always)]
    pub(crate) fn set_wait(&self, nanos: u64) {
        self.wait.set(nanos);
    }

    // -- batches

    /// A batch of so many callbacks begins, before which the turn has done nothing.
    #[inline(always)]
    pub(crate) fn begin_only_batch(&self, count: usize) -> Batch {
        if count == 1 { Batch::One(0) } else { self.begin_batch(count) }
    }

    /// A batch of so many callbacks begins.
    #[inline(always)]
    pub(crate) fn begin_batch(&self, count: usize) -> Batch {
        if count <= SMALL_BATCH || self.names_each() {
            Batch::Each(Laps::begin())
        } else {
            Batch::Parts(Laps::begin())
        }
    }

    /// The batch has ended. Its last item has waited for the others. Returns the time if it is known, else 0.
    #[inline(always)]
    pub(crate) fn end_batch(&self, batch: &Batch) -> u64 {
        match batch {
            Batch::One(end) => *end,
            Batch::Each(laps) | Batch::Parts(laps) => {
                self.note_waited(laps);
                0
            }
        }
    }

    /// A batch has ended, whose last item has waited for the others.
    #[inline(always)]
    pub(crate) fn note_waited(&self, laps: &Laps) {
        self.note_waited_ticks(laps.last.wrapping_sub(laps.start));
    }

    fn note_waited_ticks(&self, ticks: u64) {
        self.waited_ticks.set(self.waited_ticks.get().max(ticks));
    }

    /// How long the last callback or event of a batch has waited for the others, in a turn that ends at `now`, at which
    /// the counter had `ticks`.
    pub(crate) fn take_waited(&self, now: u64, ticks: u64) -> u64 {
        self.nanos(self.waited_ticks.take(), now, ticks)
    }

    /// Converts ticks to nanoseconds, by the time since the run began.
    pub(crate) fn nanos(&self, duration: u64, now: u64, ticks: u64) -> u64 {
        let (origin, origin_ticks) = self.origin.get();
        let (elapsed, all) = (now.saturating_sub(origin), ticks.wrapping_sub(origin_ticks));
        if all == 0 {
            0
        } else {
            (u128::from(duration.min(all)) * u128::from(elapsed) / u128::from(all)) as u64
        }
    }

    // -- slow turns

    /// Are the callbacks of large batches timed one by one?
    #[inline(always)]
    pub(crate) fn names_each(&self) -> bool {
        self.name_each_until.get() > self.mark.get()
    }

    /// A slow turn had callbacks that were not timed one by one. From now on they are.
    pub(crate) fn name_each(&self, now: u64) {
        self.name_each_until.set(now + NAME_EACH);
    }

    pub(crate) fn note_named(&self, turn: u64) {
        self.named_turn.set(turn);
    }

    /// Was the slow callback of this turn named?
    pub(crate) fn is_named(&self, turn: u64) -> bool {
        self.named_turn.get() == turn
    }

    /// From now on, slow turns are logged.
    pub(crate) fn log_slow_turns(&self) {
        self.logs.set(true);
    }

    /// May a slow turn be logged at `now`? Returns how many were not logged since the last one.
    pub(crate) fn may_report(&self, now: u64) -> Option<u64> {
        if !self.logs.get() {
            return None;
        }
        if now < self.next_report.get() {
            self.unreported.set(self.unreported.get() + 1);
            return None;
        }
        self.next_report.set(now + REPORT_INTERVAL);
        Some(self.unreported.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_in_a_batch_is_converted_to_nanoseconds() {
        let meter = TurnMeter::default();
        meter.begin_run(1_000, 0);
        // Four ticks are one nanosecond.
        meter.note_waited_ticks(400);
        meter.note_waited_ticks(40);
        assert_eq!(meter.take_waited(2_000, 4_000), 100);
        assert_eq!(meter.take_waited(2_000, 4_000), 0);
    }

    #[test]
    fn slow_turns_are_reported_once_per_interval_with_the_number_of_the_others() {
        let meter = TurnMeter::default();
        assert_eq!(meter.may_report(1), None, "nobody has asked");
        meter.log_slow_turns();
        assert_eq!(meter.may_report(1), Some(0));
        assert_eq!([meter.may_report(2), meter.may_report(REPORT_INTERVAL)], [None, None]);
        assert_eq!(meter.may_report(1 + REPORT_INTERVAL), Some(2));
        assert_eq!(meter.may_report(1 + 2 * REPORT_INTERVAL), Some(0));
    }
}
