//! Decides when the loop releases the GIL for other threads.
//!
//! A thread that waits for the GIL sets a drop request after a switch interval (5 ms), but only if the GIL was not
//! released in this interval. A loop that always finds events releases the GIL in each poll, and takes it back before
//! the waiting thread has woken up. The thread's interval then begins again, and the thread may starve. So the loop
//! *yields* from time to time: it does not take the GIL back for as long as a waiting thread needs to wake up and take
//! it. While a thread seems to want the GIL, the loop also releases it in every poll, as asyncio's loop does: a thread
//! that is just waking up then finds it free after a few polls.
//!
//! We cannot see which thread waits for the GIL, so we use these hints:
//! - Python has other threads at all. Without any, the loop never yields.
//! - The loop awaits executor jobs, whose threads need the GIL when they begin and when they end.
//! - Another thread has called `call_soon_threadsafe`.
//! - Another thread had the GIL when the loop wanted it back. The loop waits also if only the system runs other
//!   processes, so the processor time of this process's other threads must have grown.
//!
//! For a while after a hint the loop yields often, and releases the GIL in every poll. Otherwise it yields once per
//! switch interval.
//!
//! The opposite case is a thread that computes, and keeps the GIL for a whole switch interval each time. Then the loop
//! does not yield, because the interpreter makes the loop release the GIL anyway. After a turn with events it even
//! polls for a short time, the *grace* of `plan.rs`, before it releases the GIL: clients that answer at once can then be
//! served many times in one interval.
//!
//! On a free-threaded build there is no GIL to give up: the loop never yields, and never waits attached.
//!
//! All times are nanoseconds of the monotonic clock.

use std::cell::Cell;

use crate::capi::section::FREE_THREADED;

/// The time between two yields after a hint.
const OFTEN: u64 = 1_000_000;
/// The time between two yields without a hint: CPython's switch interval.
const RARELY: u64 = 5_000_000;
/// How long a hint is valid: several round trips between a thread and the loop, each of which waits for a yield.
const HINT_HOLDS: u64 = 50_000_000;
/// How long the loop leaves the GIL alone when it yields: the time that a waiting thread needs to wake up. On a virtual
/// machine with an idle processor 20 microseconds were too few and 40 enough.
pub(crate) const YIELD: u64 = 50_000;
/// If the loop waited longer than this for the GIL, or for its processor while it yielded, another thread may have had
/// the GIL.
const TAKEN: u64 = 5_000;
/// If other threads ran for less than this, none of them had the GIL: reading the two clocks takes some time.
const RAN: u64 = 1_000;
/// If the loop waited longer than this for the GIL, and a thread ran for as long, the thread is computing. This is more
/// than a thread needs for a short task, and less than the switch interval.
const KEPT: u64 = 1_000_000;
/// For this many times the duration of its wait, the loop expects the thread to go on computing.
const KEPT_HOLDS: u64 = 8;

/// A time without the GIL.
#[derive(Clone, Copy)]
pub(crate) struct Away {
    pub(crate) start: u64,
    /// When the loop began to wait for the GIL.
    pub(crate) end: u64,
    /// The loop yielded, and something else ran on its processor: maybe a thread that had the GIL, and gave it back.
    pub(crate) interrupted: bool,
}

impl Away {
    /// Time has gone on, to `now`, while the loop only gave way to others.
    pub(crate) fn note_step(&mut self, now: u64) {
        self.interrupted |= now - self.end > TAKEN;
        self.end = now;
    }
}

/// Which other thread wants the GIL, as far as the hints tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GilDemand {
    Nobody,
    /// One that wants it for a short time: every poll releases the GIL.
    Hinted,
    /// Perhaps one, and it is time to yield.
    YieldDue,
    /// One that computes, and keeps the GIL for long.
    CpuBound,
}

/// Decides when the loop yields, and when it keeps the GIL.
#[derive(Debug)]
pub(crate) struct GilFairness {
    next_yield: Cell<u64>,
    every: Cell<u64>,
    hint_until: Cell<u64>,
    /// There was a hint since the last scheduled yield.
    hint: Cell<bool>,
    /// Until this time, another thread is expected to be computing.
    kept_until: Cell<u64>,
    /// The processor time of the other threads when the loop last suspected that one of them had the GIL.
    other_threads: Cell<u64>,
}

impl GilFairness {
    pub(crate) fn new() -> GilFairness {
        GilFairness {
            next_yield: Cell::new(0),
            every: Cell::new(RARELY),
            hint_until: Cell::new(0),
            hint: Cell::new(false),
            kept_until: Cell::new(0),
            other_threads: Cell::new(0),
        }
    }

    /// The demand for the GIL at `now`. If a yield is due, this also schedules the next one.
    #[inline(always)]
    pub(crate) fn demand(
        &self,
        now: u64,
        awaits_jobs: bool,
        is_only_thread: impl FnOnce() -> bool,
    ) -> GilDemand {
        if FREE_THREADED {
            GilDemand::Nobody
        } else if self.is_kept(now) {
            GilDemand::CpuBound
        } else if now >= self.next_yield.get() && self.schedule_yield(now, awaits_jobs, is_only_thread()) {
            GilDemand::YieldDue
        } else if now < self.hint_until.get() {
            GilDemand::Hinted
        } else {
            GilDemand::Nobody
        }
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

    /// Does another thread seem to compute, and to keep the GIL for long?
    #[inline(always)]
    pub(crate) fn is_kept(&self, now: u64) -> bool {
        !FREE_THREADED && now < self.kept_until.get()
    }

    /// The loop did not have the GIL for at least [`YIELD`], until `now`. That counts as a yield.
    #[inline(always)]
    fn note_away(&self, now: u64) {
        self.next_yield.set(now + self.every.get());
    }

    /// Records a poll without the GIL. The loop had the GIL again at `back`. `other_threads` returns the processor time
    /// of the process's other threads, or `None` if none of them runs Python.
    pub(crate) fn note_poll(&self, away: Away, back: u64, other_threads: impl FnOnce() -> Option<u64>) {
        if FREE_THREADED {
            return;
        }
        if away.end - away.start >= YIELD {
            self.note_away(away.end);
        }
        let waited = back - away.end;
        if (waited > TAKEN || away.interrupted)
            && let Some(time) = other_threads()
        {
            // After a fork it begins again at zero.
            let ran = time.saturating_sub(self.other_threads.replace(time));
            if ran > RAN {
                self.note_thread();
            }
            let kept = waited.min(ran);
            if kept > KEPT {
                self.kept_until.set(back + KEPT_HOLDS * kept);
            }
        }
    }

    /// Records the hint that another thread has, or just had, the GIL. It will probably need it again.
    #[inline]
    pub(crate) fn note_thread(&self) {
        if FREE_THREADED {
            return;
        }
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
    /// Later than all times that a new object has recorded.
    const NOW: u64 = 1_000_000_000;

    impl GilFairness {
        fn is_yield_due(&self, now: u64, awaits_jobs: bool, is_only_thread: fn() -> bool) -> bool {
            self.demand(now, awaits_jobs, is_only_thread) == GilDemand::YieldDue
        }
    }

    /// A poll that began at NOW and took so long, after which the loop waited for the GIL while other threads ran.
    fn note_poll(fairness: &GilFairness, took: u64, waited: u64, ran: Option<u64>) {
        let away = Away { start: NOW, end: NOW + took, interrupted: false };
        fairness.note_poll(away, away.end + waited, || ran);
    }

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
    fn a_call_from_another_thread_makes_yields_frequent_for_a_while() {
        let fairness = GilFairness::new();
        assert!(fairness.is_yield_due(NOW, false, OTHERS));
        fairness.note_thread();
        assert!(fairness.is_yield_due(NOW + 1, false, OTHERS));
        assert!(fairness.is_yield_due(NOW + 1 + OFTEN, false, OTHERS));
        // The hint is no longer valid: after this yield, the next one is due after the long interval.
        let later = NOW + 1 + HINT_HOLDS;
        assert!(fairness.is_yield_due(later, false, OTHERS));
        assert_eq!(fairness.demand(later + OFTEN, false, OTHERS), GilDemand::Nobody);
    }

    #[test]
    fn a_thread_that_ran_during_a_yield_will_want_the_gil_again() {
        let fairness = GilFairness::new();
        assert!(fairness.is_yield_due(NOW, false, OTHERS));
        let mut away = Away { start: NOW, end: NOW, interrupted: false };
        away.note_step(NOW + TAKEN);
        fairness.note_poll(away, away.end, || Some(TAKEN));
        assert!(!fairness.is_yield_due(NOW + OFTEN, false, OTHERS));
        away.note_step(away.end + TAKEN + 1);
        fairness.note_poll(away, away.end, || Some(TAKEN));
        assert!(fairness.is_yield_due(NOW + OFTEN, false, OTHERS));
        assert_eq!(fairness.demand(NOW + OFTEN, false, OTHERS), GilDemand::Hinted);
    }

    #[test]
    fn a_long_poll_counts_as_a_yield() {
        let fairness = GilFairness::new();
        note_poll(&fairness, YIELD, 0, None);
        assert!(!fairness.is_yield_due(NOW + YIELD + 1, false, OTHERS));
        let fairness = GilFairness::new();
        note_poll(&fairness, YIELD - 1, 0, None);
        assert!(fairness.is_yield_due(NOW + YIELD, false, OTHERS));
    }

    #[test]
    fn a_loop_does_not_yield_to_a_thread_that_computes() {
        let fairness = GilFairness::new();
        assert!(!fairness.is_kept(NOW));
        let back = NOW + KEPT + 1;
        note_poll(&fairness, 0, KEPT + 1, Some(KEPT + 1));
        assert_eq!(fairness.demand(back, true, OTHERS), GilDemand::CpuBound);
        let end = back + KEPT_HOLDS * (KEPT + 1);
        assert!(!fairness.is_kept(end));
        assert!(fairness.is_yield_due(end, true, OTHERS));
    }

    #[test]
    fn a_wait_that_no_other_thread_can_have_caused_is_no_hint() {
        for ran in [None, Some(0), Some(RAN)] {
            let fairness = GilFairness::new();
            assert!(fairness.is_yield_due(NOW, false, OTHERS));
            note_poll(&fairness, 0, KEPT + 1, ran);
            assert!(!fairness.is_yield_due(NOW + OFTEN, false, OTHERS));
            assert!(!fairness.is_kept(NOW + KEPT + 1));
        }
    }

    #[test]
    fn the_time_that_threads_ran_before_an_earlier_wait_counts_once() {
        let fairness = GilFairness::new();
        let ran = 2 * (KEPT + 1);
        note_poll(&fairness, 0, KEPT + 1, Some(ran));
        let mut now = NOW + KEPT + 1;
        assert!(fairness.is_kept(now));
        now += KEPT_HOLDS * ran + HINT_HOLDS;
        assert!(fairness.is_yield_due(now, false, OTHERS));
        assert_eq!(fairness.demand(now + HINT_HOLDS, false, ALONE), GilDemand::Nobody);
        now += HINT_HOLDS;
        // The loop waits again, and no other thread has run since.
        fairness.note_poll(Away { start: now, end: now, interrupted: false }, now + KEPT + 1, || Some(ran));
        assert_eq!(fairness.demand(now + KEPT + 1, false, ALONE), GilDemand::Nobody);
        assert!(!fairness.hint.get());
    }

    #[test]
    fn a_thread_that_did_not_run_for_long_is_not_computing() {
        let fairness = GilFairness::new();
        note_poll(&fairness, 0, 2 * KEPT, Some(KEPT));
        assert!(fairness.is_yield_due(NOW + 2 * KEPT, false, OTHERS));
        assert!(!fairness.is_kept(NOW + 2 * KEPT));
    }
}
