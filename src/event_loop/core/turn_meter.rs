//! Measures the turns of a loop with one clock read for each.
//!
//! - A turn begins where the poll ends, and ends where the next turn begins. The clock is read there anyway.
//! - Turns that follow another without a poll are not measured, because together they take less than 150 µs.
//! - The **delay** of a turn is how long the work that it found had been ready. Callbacks were ready since the previous
//!   turn began at the latest, and so were events that a poll reported at once. Other events were ready when the poll
//!   ended, and a timer at its deadline. If the turn has several callbacks or events, the last one has also waited for
//!   those before it.
//! - Between the callbacks of a turn only [`ticks`](super::super::clock::ticks) are read, and only in small batches.
//!
//! All times are nanoseconds of the monotonic clock.

use std::cell::Cell;

use super::super::clock::ticks;

/// `loop.slow_turn_duration`, unless the program sets another.
pub(crate) const SLOW_TURN: u64 = 250_000_000;
/// A published loop publishes callbacks from this length on.
const PUBLISHED: u64 = 5_000_000;
/// For so long after a slow turn in which no callback could be named, the callbacks of large batches are timed one by
/// one.
const NAME_EACH: u64 = 60_000_000_000;
/// Slow turns are logged at most once per interval.
const REPORT_INTERVAL: u64 = 1_000_000_000;
/// This many ticks are some 10 milliseconds or more, and less than the shortest limit that makes sense.
#[cfg(target_arch = "x86_64")]
const LONG_TICKS: u64 = 1 << 25;
/// The counter of most aarch64 systems has between 24 MHz and 1 GHz.
#[cfg(target_arch = "aarch64")]
const LONG_TICKS: u64 = 1 << 18;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LONG_TICKS: u64 = 10_000_000;

/// The largest batch whose callbacks are timed one by one.
const SMALL_BATCH: usize = 16;

/// How callbacks and events are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// Not one by one.
    Off,
    /// It is the only one, and the turn's clock is read after it.
    Only,
    /// One by one, in ticks.
    Each,
}

/// Points in time, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    start: u64,
    last: u64,
    end: u64,
}

#[derive(Debug)]
pub(crate) struct TurnMeter {
    /// When the turn began: the end of its poll.
    mark: Cell<u64>,
    /// How long the work of the turn had been ready when the turn began.
    wait: Cell<u64>,
    /// How the callbacks or events of the batch are timed that the loop handles now.
    timing: Cell<Timing>,
    /// When the batch began, when its last item began, and when it ended, in ticks.
    batch: Cell<Batch>,
    /// How long the last callback or event of a batch has waited for the others, in ticks.
    waited_ticks: Cell<u64>,
    /// The time after the only callback of the turn, if the next turn may begin with it; else 0.
    carried: Cell<u64>,
    /// From this length on, a turn is slow.
    limit: Cell<u64>,
    /// From this length on, a callback is reported or published: `limit`, or less while the loop is published.
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
            timing: Cell::new(Timing::Off),
            batch: Cell::new(Batch::default()),
            waited_ticks: Cell::new(0),
            carried: Cell::new(0),
            limit: Cell::new(SLOW_TURN),
            noted: Cell::new(SLOW_TURN),
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
        self.carried.set(0);
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

    /// Is a callback of this length reported or published?
    #[inline(always)]
    pub(crate) fn is_noted(&self, nanos: u64) -> bool {
        nanos >= self.noted.get()
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.get()
    }

    /// Sets the length of a slow turn. With `published`, shorter callbacks are published.
    pub(crate) fn set_limit(&self, nanos: u64, published: bool) {
        self.limit.set(nanos);
        self.noted.set(if published { nanos.min(PUBLISHED) } else { nanos });
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

    /// A batch of callbacks begins. Returns false if it is large, and if its callbacks are not timed one by one.
    #[inline(always)]
    pub(crate) fn begin_batch(&self, count: usize) -> bool {
        if count == 1 {
            self.timing.set(Timing::Only);
            return true;
        }
        self.begin_items(count <= SMALL_BATCH || self.names_each())
    }

    /// A batch of callbacks or events begins. Returns whether they are timed one by one.
    #[inline(always)]
    pub(crate) fn begin_items(&self, each: bool) -> bool {
        let now = ticks();
        self.batch.set(Batch { start: now, last: now, end: now });
        self.timing.set(if each { Timing::Each } else { Timing::Off });
        each
    }

    #[inline(always)]
    pub(crate) fn timing(&self) -> Timing {
        self.timing.get()
    }

    /// An item of the batch has ended, or several. Returns how long that took if it was long, in ticks.
    #[inline(always)]
    pub(crate) fn end_item(&self) -> Option<u64> {
        let Batch { start, end: last, .. } = self.batch.get();
        let end = ticks();
        self.batch.set(Batch { start, last, end });
        let taken = end.wrapping_sub(last);
        (taken > LONG_TICKS).then_some(taken)
    }

    /// The batch has ended. Its last item has waited for the others.
    #[inline(always)]
    pub(crate) fn end_batch(&self) {
        if self.timing.get() != Timing::Only {
            let Batch { start, last, .. } = self.batch.get();
            self.note_waited_ticks(last.wrapping_sub(start));
        }
        self.timing.set(Timing::Off);
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

    // -- the clock

    /// The clock was read after the only callback of a turn.
    #[inline(always)]
    pub(crate) fn carry(&self, now: u64) {
        self.carried.set(now);
    }

    /// The clock reading that the next turn may begin with.
    #[inline(always)]
    pub(crate) fn take_carried(&self) -> u64 {
        self.carried.take()
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

    /// May a slow turn be logged at `now`? Returns how many were not logged since the last one.
    pub(crate) fn may_report(&self, now: u64) -> Option<u64> {
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
        assert_eq!(meter.may_report(1), Some(0));
        assert_eq!([meter.may_report(2), meter.may_report(REPORT_INTERVAL)], [None, None]);
        assert_eq!(meter.may_report(1 + REPORT_INTERVAL), Some(2));
        assert_eq!(meter.may_report(1 + 2 * REPORT_INTERVAL), Some(0));
    }

    #[test]
    fn a_carried_clock_reading_is_used_once() {
        let meter = TurnMeter::default();
        meter.carry(7);
        assert_eq!([meter.take_carried(), meter.take_carried()], [7, 0]);
    }
}
