//! Decides which worker looks after the driver while the worker that slept in it polls a task.
//!
//! A poll is usually short, and its worker is soon back in the driver. Sending another worker there for each
//! batch of events would cost more than it gains. But the poll may be long, and then timers and sockets would
//! wait for its end although other workers sleep. So one of the workers that sleep outside the driver keeps
//! watch. It wakes every [`PERIOD`]. If nobody has left the driver during a whole period, and nobody is in it,
//! the watcher goes there itself. If a worker sleeps in the driver, there is nothing to watch: the watch ends,
//! and the next worker to leave the driver calls for a new one. So an idle runtime sleeps, and a busy one pays
//! for one look per period.
//!
//! The rules:
//!
//! 1. A worker that leaves the driver, after a sleep or a mere look, counts that with [`Watch::left`]. If
//!    nobody keeps watch, it calls one of the parked workers to do so. While a worker keeps watch, nobody else
//!    is woken for the few short tasks that the driver brings. If one of them is long after all, the watcher
//!    sees that the driver is left alone, and takes the others.
//! 2. The watcher is on the list of parked workers. When it is taken off the list for work, it gives up the
//!    watch ([`Watch::give_up`]) and does what a worker does that leaves the driver.
//! 3. The watch ends with [`Watch::stand_down`], which fails if a worker left the driver since the last look.
//!    The count and the watch are one word: this step and rule 1 are ordered, so one of the two sees the other.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use super::super::shim::{AtomicUsize, fence};
use super::idle::Idle;

/// A driver that is left alone is looked after within two periods.
pub(super) const PERIOD: Duration = Duration::from_millis(1);

/// The lower half of the word: the watcher's number plus one.
const WATCHER: usize = 0xFFFF;
const TURN: usize = 1 << 16;

pub(super) struct Watch {
    /// `times the driver was left << 16 | watcher's number plus one`. The word guards no memory: each change
    /// only has to see the one before. So its accesses are relaxed.
    word: AtomicUsize,
}

/// The state of the watch at a look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(usize);

impl Watch {
    pub(super) fn new() -> Watch {
        Watch { word: AtomicUsize::new(0) }
    }

    /// The caller has left the driver. Returns a worker to unpark, which then keeps watch. For `in_driver` see
    /// [`Idle::notify`].
    pub(super) fn left(&self, idle: &Idle, in_driver: impl Fn(usize) -> bool) -> Option<usize> {
        let before = self.word.fetch_add(TURN, Relaxed);
        if before & WATCHER != 0 {
            return None;
        }
        // Ordering: pairs with the fence in `Idle::park`. Either we see the worker that is going to sleep, or
        // it sees that the driver is free.
        fence(SeqCst);
        idle.appoint(in_driver, |worker| self.appoint(worker))
    }

    /// Appoints a watcher. Returns false if there is one already.
    fn appoint(&self, worker: usize) -> bool {
        let appointed = |word: usize| (word & WATCHER == 0).then_some(word + worker + 1);
        self.word.fetch_update(Relaxed, Relaxed, appointed).is_ok()
    }

    /// Whether a worker keeps watch. The answer may be out of date.
    pub(super) fn is_kept(&self) -> bool {
        self.word.load(Relaxed) & WATCHER != 0
    }

    /// Returns the state to compare with later, if `worker` is the watcher.
    pub(super) fn look(&self, worker: usize) -> Option<Seen> {
        let word = self.word.load(Relaxed);
        (word & WATCHER == worker + 1).then_some(Seen(word))
    }

    /// Ends the caller's watch. Returns false, and does not end it, if a worker left the driver since `seen`.
    pub(super) fn stand_down(&self, seen: Seen) -> bool {
        self.word.compare_exchange(seen.0, seen.0 & !WATCHER, Relaxed, Relaxed).is_ok()
    }

    /// Ends the watch of `worker`, which has other things to do. Returns whether it kept watch until now.
    pub(super) fn give_up(&self, worker: usize) -> bool {
        let kept = self.look(worker).is_some();
        if kept {
            // Only the watcher changes this half.
            self.word.fetch_sub(worker + 1, Relaxed);
        }
        kept
    }
}
