//! Whether spins pay: from time to time, the thread waits for a while with spins and for a while without, and goes on
//! with what was better.
//!
//! What is better depends on what the thread waits for. If clients wait for the thread, spins serve them sooner, and
//! the processor time of a spin is less than that of going to sleep and of being woken. If the thread waits for slow
//! clients, a spin only uses up processor time until the same event comes. Both look the same in the length of a wait. So
//! the judge is the product of the processor time and of the time that an event, or as much work, took, as both have to
//! be low ([`MARGIN`]).

use std::cell::Cell;

/// How many waits each half of a trial has.
const WAITS: u32 = 100;
/// How many times as long as the trial its result holds, at first and at most. That doubles with each trial that has the
/// same result.
const HOLDS: u64 = 16;
const HOLDS_MOST: u64 = 4 * HOLDS;
/// The product with spins has to be below this part of the other. Two halves differ by a tenth by chance, and what makes
/// no difference is not worth the processor time.
const MARGIN: f64 = 0.85;

/// What an amount of work has taken. Both times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) time: u64,
    pub(super) processor: u64,
    /// Bytes, and events, of which some have none.
    pub(super) work: u64,
}

impl Spent {
    fn since(self, earlier: Spent) -> Spent {
        Spent {
            time: self.time.saturating_sub(earlier.time),
            processor: self.processor.saturating_sub(earlier.processor),
            work: self.work.saturating_sub(earlier.work),
        }
    }

    fn product(self) -> f64 {
        let work = self.work.max(1) as f64;
        (self.time as f64 / work) * (self.processor as f64 / work)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The first half of a trial, or the second with the result of the first.
    Spins,
    Sleeps(f64),
    /// The result holds until then.
    Decided(bool, u64),
}

#[derive(Debug)]
pub(super) struct Trial {
    phase: Cell<Phase>,
    /// How many waits are left in this half of the trial.
    left: Cell<u32>,
    /// When the trial began.
    start: Cell<u64>,
    /// What was spent before this half.
    before: Cell<Spent>,
    /// The last result, and for how many times the length of a trial it holds.
    last: Cell<(bool, u64)>,
}

impl Trial {
    /// One whose result always holds.
    #[cfg(test)]
    pub(super) fn over() -> Trial {
        Trial { phase: Cell::new(Phase::Decided(true, u64::MAX)), ..Trial::new() }
    }

    pub(super) fn new() -> Trial {
        Trial {
            phase: Cell::new(Phase::Decided(true, 0)),
            left: Cell::new(0),
            start: Cell::new(0),
            before: Cell::new(Spent::default()),
            last: Cell::new((true, HOLDS / 2)),
        }
    }

    /// Should a wait that begins at `now` spin, as far as this matters? `spent` is called at the ends of halves.
    #[inline(always)]
    pub(super) fn allows(&self, now: u64, spent: impl Fn() -> Spent) -> bool {
        match self.phase.get() {
            Phase::Decided(spins, until) if now < until => spins,
            Phase::Spins if self.count() => true,
            Phase::Sleeps(_) if self.count() => false,
            _ => self.next_half(spent()),
        }
    }

    #[inline(always)]
    fn count(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }

    #[cold]
    fn next_half(&self, spent: Spent) -> bool {
        let product = spent.since(self.before.replace(spent)).product();
        self.left.set(WAITS);
        let (phase, spins) = match self.phase.get() {
            Phase::Decided(..) => {
                self.start.set(spent.time);
                (Phase::Spins, true)
            }
            Phase::Spins => (Phase::Sleeps(product), false),
            Phase::Sleeps(with_spins) => {
                let spins = with_spins <= product * MARGIN;
                let (last, held) = self.last.get();
                let holds = if spins == last { (2 * held).min(HOLDS_MOST) } else { HOLDS };
                self.last.set((spins, holds));
                let took = spent.time.saturating_sub(self.start.get());
                (Phase::Decided(spins, spent.time.saturating_add(holds * took)), spins)
            }
        };
        self.phase.set(phase);
        spins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for so long, where a wait with and one without a spin take this time and processor time, for this much work.
    /// Returns how many waits were of which kind.
    fn run(
        trial: &Trial,
        start: u64,
        duration: u64,
        spinning: (u64, u64, u64),
        sleeping: (u64, u64, u64),
    ) -> (u64, u64) {
        let mut spent = Spent { time: start, ..Spent::default() };
        let (mut spins, mut sleeps) = (0, 0);
        while spent.time < start + duration {
            let allowed = trial.allows(spent.time, || spent);
            let (time, processor, work) = if allowed { spinning } else { sleeping };
            spent.time += time;
            spent.processor += processor;
            spent.work += work;
            *(if allowed { &mut spins } else { &mut sleeps }) += 1;
        }
        (spins, sleeps)
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn spins_that_make_waits_shorter_go_on() {
        let (spins, sleeps) = run(&Trial::new(), 0, SECOND, (10_000, 10_000, 1), (60_000, 25_000, 1));
        assert!(sleeps <= 6 * u64::from(WAITS) && spins > 90_000, "{spins} {sleeps}");
    }

    #[test]
    fn spins_that_only_cost_processor_time_end() {
        let (spins, sleeps) = run(&Trial::new(), 0, SECOND, (30_000, 30_000, 1), (30_000, 10_000, 1));
        assert!(spins <= 6 * u64::from(WAITS) && sleeps > 30_000, "{spins} {sleeps}");
    }

    #[test]
    fn spins_that_gain_as_much_time_as_they_cost_end() {
        let (spins, sleeps) = run(&Trial::new(), 0, SECOND, (28_500, 31_000, 1), (30_000, 30_000, 1));
        assert!(spins <= 6 * u64::from(WAITS) && sleeps > 30_000, "{spins} {sleeps}");
    }

    #[test]
    fn spins_that_only_split_messages_into_more_events_end() {
        // 16 KiB a wait without spins, 4 KiB with them.
        let (spins, sleeps) =
            run(&Trial::new(), 0, SECOND, (6_000, 6_000, 1 + 4096), (24_000, 12_000, 1 + 16384));
        assert!(spins <= 10 * u64::from(WAITS) && sleeps > 15_000, "{spins} {sleeps}");
    }

    #[test]
    fn a_change_is_noticed_after_some_seconds_at_most() {
        let trial = Trial::new();
        run(&trial, 0, 10 * SECOND, (30_000, 30_000, 1), (30_000, 10_000, 1));
        let (spins, _) = run(&trial, 10 * SECOND, 10 * SECOND, (10_000, 10_000, 1), (60_000, 25_000, 1));
        assert!(spins > 700_000, "{spins}");
    }
}
