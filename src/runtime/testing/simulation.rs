//! What a test controls of a runtime, shared by all threads that use the runtime.

use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use super::super::wakers::wake_all;
use super::clock::TestClock;
use super::random::{Random, mix};
use crate::poison::unpoisoned;

/// The control of one runtime.
pub(in super::super) struct Simulation {
    pub(in super::super) clock: TestClock,
    settings: Settings,
    order: Mutex<Order>,
    /// How many `Hold`s there are.
    holds: Mutex<usize>,
    settling: Mutex<Settling>,
}

/// What a [`Builder`](super::Builder) sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) seed: Option<u64>,
    pub(super) paused: bool,
    pub(super) runs_jobs: bool,
    pub(super) jumps_over_outside: bool,
}

/// How many steps of each kind could be next.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Counts {
    pub(in super::super) timers: usize,
    pub(in super::super) roots: usize,
    pub(in super::super) tasks: usize,
    pub(in super::super) jobs: usize,
}

/// The next step, with its place among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Step {
    Timer(usize),
    /// The future of `block_on`.
    Root,
    Task(usize),
    Job(usize),
}

/// How the next step is chosen.
struct Order {
    /// Without it, due timers come first, the other kinds take turns, and each goes by its own order.
    random: Option<Random>,
    /// The kind of the last step.
    kind: usize,
    /// A digest of all steps so far.
    digest: u64,
}

/// Tasks that wait until everything waits.
#[derive(Default)]
struct Settling {
    /// How often everything has waited.
    settled: u64,
    wakers: Vec<Waker>,
}

impl Simulation {
    pub(super) fn new(settings: Settings) -> Simulation {
        Simulation {
            clock: TestClock::new(settings.paused),
            settings,
            order: Mutex::new(Order { random: settings.seed.map(Random::new), kind: 0, digest: 0 }),
            holds: Mutex::default(),
            settling: Mutex::default(),
        }
    }

    pub(in super::super) fn seed(&self) -> Option<u64> {
        self.settings.seed
    }

    /// Whether blocking jobs run as steps, and not on threads of their own.
    pub(in super::super) fn runs_jobs(&self) -> bool {
        self.settings.runs_jobs
    }

    pub(in super::super) fn jumps_over_outside(&self) -> bool {
        self.settings.jumps_over_outside
    }

    /// Chooses the next step, unless there is none.
    pub(in super::super) fn choose(&self, counts: Counts) -> Option<Step> {
        unpoisoned(self.order.lock()).choose(counts)
    }

    /// Chooses one of `count` things that are ready, if there is a seed.
    pub(in super::super) fn draw(&self, count: usize) -> Option<usize> {
        unpoisoned(self.order.lock()).draw(count)
    }

    /// A digest of all choices so far. Two runs with the same steps have the same.
    pub(super) fn digest(&self) -> u64 {
        unpoisoned(self.order.lock()).digest
    }

    pub(super) fn hold(&self) {
        *unpoisoned(self.holds.lock()) += 1;
    }

    pub(super) fn release(&self) {
        *unpoisoned(self.holds.lock()) -= 1;
    }

    /// Whoever finds no hold also finds what was woken before the last one ended.
    pub(in super::super) fn is_held(&self) -> bool {
        *unpoisoned(self.holds.lock()) > 0
    }

    /// Waits until everything waits. `since` is empty at first.
    pub(super) fn poll_settled(&self, since: &mut Option<u64>, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut settling = unpoisoned(self.settling.lock());
        if settling.settled > *since.get_or_insert(settling.settled) {
            return Poll::Ready(());
        }
        settling.wakers.push(waker);
        Poll::Pending
    }

    /// Everything waits: wakes the tasks that wait for this. Returns whether there were any.
    pub(in super::super) fn wake_settling(&self) -> bool {
        let mut settling = unpoisoned(self.settling.lock());
        settling.settled += 1;
        let wakers = std::mem::take(&mut settling.wakers);
        drop(settling);
        let any = !wakers.is_empty();
        wake_all(wakers);
        any
    }
}

impl Order {
    fn choose(&mut self, counts: Counts) -> Option<Step> {
        let Counts { timers, roots, tasks, jobs } = counts;
        let counts = [timers, roots, tasks, jobs];
        let total = counts.iter().sum();
        if total == 0 {
            return None;
        }
        let (kind, index) = match self.draw(total) {
            Some(mut index) => {
                let mut kind = 0;
                while index >= counts[kind] {
                    index -= counts[kind];
                    kind += 1;
                }
                (kind, index)
            }
            None if timers > 0 => (0, 0),
            // A kind that is always ready must not keep the others from their turn.
            None => {
                let after = (1..=counts.len()).map(|n| (self.kind + n) % counts.len());
                (after.into_iter().find(|kind| counts[*kind] > 0)?, 0)
            }
        };
        self.kind = kind;
        self.note(total as u64);
        self.note((index * counts.len() + kind) as u64);
        Some(match kind {
            0 => Step::Timer(index),
            1 => Step::Root,
            2 => Step::Task(index),
            _ => Step::Job(index),
        })
    }

    fn draw(&mut self, count: usize) -> Option<usize> {
        let drawn = self.random.as_mut()?.below(count);
        self.note(drawn as u64);
        Some(drawn)
    }

    fn note(&mut self, choice: u64) {
        self.digest = mix(self.digest.wrapping_add(choice).wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: Option<u64>) -> Order {
        Order { random: seed.map(Random::new), kind: 0, digest: 0 }
    }

    #[test]
    fn without_a_seed_the_kinds_take_turns() {
        let mut order = order(None);
        let counts = Counts { timers: 0, roots: 1, tasks: 5, jobs: 2 };
        let steps: Vec<_> = (0..4).map(|_| order.choose(counts).unwrap()).collect();
        assert_eq!(steps, [Step::Root, Step::Task(0), Step::Job(0), Step::Root]);
        assert_eq!(order.choose(Counts { timers: 0, roots: 0, tasks: 0, jobs: 0 }), None);
    }

    #[test]
    fn with_a_seed_every_step_is_about_as_likely_as_the_others() {
        let mut order = order(Some(1));
        let counts = Counts { timers: 1, roots: 1, tasks: 4, jobs: 2 };
        let mut seen = std::collections::HashMap::new();
        for _ in 0..8000 {
            *seen.entry(format!("{:?}", order.choose(counts).unwrap())).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 8);
        assert!(seen.values().all(|times| (800..1200).contains(times)), "{seen:?}");
    }

    #[test]
    fn different_seeds_choose_different_orders() {
        let digest = |seed| {
            let mut order = order(Some(seed));
            assert!((0..20).all(|_| order.draw(3).is_some_and(|drawn| drawn < 3)));
            order.digest
        };
        let digests: std::collections::HashSet<_> = (0..1000).map(digest).collect();
        assert_eq!(digests.len(), 1000);
        assert_eq!(digest(7), digest(7));
    }
}
