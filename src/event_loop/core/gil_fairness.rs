//! Lets other threads have the GIL.
//!
//! The interpreter lets a thread in that has waited for the GIL for a whole switch interval (5 ms), in which the loop did
//! not give it up. A loop that always finds events gives the GIL up in each poll, and has it back before the waiting
//! thread is awake. That thread's wait then begins anew, and it may starve. So the loop *yields* from time to time: it
//! stays away for as long as a waiting thread needs to wake and take the GIL.
//!
//! We cannot see which thread waits for the GIL, so we use these hints: whether Python has other threads at all; how many
//! executor jobs are awaited, whose threads want the GIL when they begin and when they end; that a thread has called in;
//! and that a thread had the GIL when the loop came back for it. After a hint the loop yields often for a while, else as
//! rarely as a thread waits at most.
//!
//! The opposite case is a thread that computes and keeps the GIL for a whole interval whenever it gets it. Then the loop
//! does not yield (the interpreter gives that thread its share), and it holds on to the GIL for a short *grace* after
//! events, because clients that answer at once can then be served many times in one interval.
//!
//! All times are nanoseconds of the monotonic clock.

use std::cell::Cell;
use std::time::Duration;

/// How often the loop yields after a hint.
const OFTEN: u64 = 300_000;
/// How often else: a thread waits as long at most if the loop does not give up the GIL at all.
const RARELY: u64 = 5_000_000;
/// How long a hint holds: a few times what a round trip takes that has to wait for a yield.
const HINT_HOLDS: u64 = 50_000_000;
/// How long the loop stays away when it yields: the time in which a thread wakes that waits for the GIL.
pub(crate) const YIELD: u64 = 20_000;
/// The loop waited longer than this for the GIL: another thread has had it.
const TAKEN: u64 = 5_000;
/// The loop waited longer than this for the GIL: a thread keeps it. More than threads need that only run for a moment,
/// less than the interpreter's switch interval.
const KEPT: u64 = 1_000_000;
/// For so many times as long as the loop waited it expects the thread to keep the GIL again.
const KEPT_HOLDS: u64 = 8;
/// How long a turn with events waits for the next ones before it gives up the GIL, while a thread keeps it. That thread
/// loses one such wait per interval, and the interpreter still takes the GIL from callbacks.
const GRACE: Duration = Duration::from_micros(100);

/// When the loop yields, and when it holds on to the GIL.
#[derive(Debug)]
pub(crate) struct GilFairness {
    next_yield: Cell<u64>,
    every: Cell<u64>,
    hint_until: Cell<u64>,
    /// There was a hint since the last look.
    hint: Cell<bool>,
    /// Until when a thread is expected to keep the GIL for long.
    kept_until: Cell<u64>,
}

impl GilFairness {
    pub(crate) fn new() -> GilFairness {
        GilFairness {
            next_yield: Cell::new(0),
            every: Cell::new(RARELY),
            hint_until: Cell::new(0),
            hint: Cell::new(false),
            kept_until: Cell::new(0),
        }
    }

    /// Should the next poll be a yield? If so, or if no thread could take it, the next one is due later.
    #[inline(always)]
    pub(crate) fn is_yield_due(
        &self,
        now: u64,
        awaits_jobs: bool,
        is_only_thread: impl FnOnce() -> bool,
    ) -> bool {
        now >= self.next_yield.get()
            && now >= self.kept_until.get()
            && self.schedule_yield(now, awaits_jobs, is_only_thread())
    }

    #[cold]
    fn schedule_yield(&self, now: u64, awaits_jobs: bool, is_only_thread: bool) -> bool {
        if self.hint.take() || awaits_jobs {
            self.hint_until.set(now + HINT_HOLDS);
        }
        let often = !is_only_thread && now < self.hint_until.get();
        self.every.set(if often { OFTEN } else { RARELY });
        self.note_away(now);
        !is_only_thread
    }

    /// How long a poll waits with the GIL before it gives it up.
    #[inline(always)]
    pub(crate) fn grace(&self, now: u64, had_events: bool) -> Option<Duration> {
        (had_events && now < self.kept_until.get()).then_some(GRACE)
    }

    /// The loop was away from the GIL for at least [`YIELD`], until `now`.
    #[inline(always)]
    fn note_away(&self, now: u64) {
        self.next_yield.set(now + self.every.get());
    }

    /// The poll without the GIL lasted from `start` to `end`, and the loop had the GIL again at `back`.
    pub(crate) fn note_poll(
        &self,
        (start, end, back): (u64, u64, u64),
        is_only_thread: impl FnOnce() -> bool,
    ) {
        if end - start >= YIELD {
            self.note_away(end);
        }
        let waited = back - end;
        // If there is no other thread, it was the system that let the loop wait.
        if waited > TAKEN && !is_only_thread() {
            self.note_thread();
            if waited > KEPT {
                self.kept_until.set(back + KEPT_HOLDS * waited);
            }
        }
    }

    /// A thread has, or just had, the GIL: it will want it again.
    #[inline]
    pub(crate) fn note_thread(&self) {
        self.hint.set(true);
        if self.every.get() == RARELY {
            self.every.set(OFTEN);
            self.next_yield.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: fn() -> bool = || true;
    const OTHERS: fn() -> bool = || false;
    /// Later than anything that a new loop has noted.
    const NOW: u64 = 1_000_000_000;

    #[test]
    fn a_loop_without_other_threads_never_yields() {
        let fairness = GilFairness::new();
        assert!(!fairness.is_yield_due(NOW, true, ALONE));
        assert!(!fairness.is_yield_due(NOW + RARELY, true, ALONE));
    }

    #[test]
    fn yields_are_rare_without_hints_and_frequent_with_awaited_jobs() {
        let fairness = GilFairness::new();
        assert!(fairness.is_yield_due(NOW, false, OTHERS));
        assert!(!fairness.is_yield_due(NOW + RARELY - 1, false, OTHERS));
        assert!(fairness.is_yield_due(NOW + RARELY, true, OTHERS));
        let now = NOW + RARELY;
        assert!(!fairness.is_yield_due(now + OFTEN - 1, false, OTHERS));
        assert!(fairness.is_yield_due(now + OFTEN, false, OTHERS));
    }

    #[test]
    fn a_thread_that_calls_in_is_let_in_at_once_and_for_a_while() {
        let fairness = GilFairness::new();
        assert!(fairness.is_yield_due(NOW, false, OTHERS));
        fairness.note_thread();
        assert!(fairness.is_yield_due(NOW + 1, false, OTHERS));
        assert!(fairness.is_yield_due(NOW + 1 + OFTEN, false, OTHERS));
        // The hint holds no longer: the yield after this one is rare again.
        let later = NOW + 1 + HINT_HOLDS;
        assert!(fairness.is_yield_due(later, false, OTHERS));
        assert!(!fairness.is_yield_due(later + OFTEN, false, OTHERS));
    }

    #[test]
    fn a_long_poll_counts_as_a_yield() {
        let fairness = GilFairness::new();
        fairness.note_poll((NOW, NOW + YIELD, NOW + YIELD), OTHERS);
        assert!(!fairness.is_yield_due(NOW + YIELD + 1, false, OTHERS));
        let fairness = GilFairness::new();
        fairness.note_poll((NOW, NOW + YIELD - 1, NOW + YIELD - 1), OTHERS);
        assert!(fairness.is_yield_due(NOW + YIELD, false, OTHERS));
    }

    #[test]
    fn a_thread_that_keeps_the_gil_gets_no_yields_and_the_loop_a_grace() {
        let fairness = GilFairness::new();
        assert_eq!(fairness.grace(NOW, true), None);
        let back = NOW + KEPT + 1;
        fairness.note_poll((NOW, NOW, back), OTHERS);
        assert_eq!(fairness.grace(back, true), Some(GRACE));
        assert_eq!(fairness.grace(back, false), None);
        assert!(!fairness.is_yield_due(back, true, OTHERS));
        let end = back + KEPT_HOLDS * (KEPT + 1);
        assert_eq!(fairness.grace(end, true), None);
        assert!(fairness.is_yield_due(end, true, OTHERS));
    }

    #[test]
    fn a_wait_that_no_other_thread_can_have_caused_is_no_hint() {
        let fairness = GilFairness::new();
        fairness.note_poll((NOW, NOW, NOW + KEPT + 1), ALONE);
        assert_eq!(fairness.grace(NOW + KEPT + 1, true), None);
    }
}
