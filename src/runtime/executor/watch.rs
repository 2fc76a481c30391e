//! Who sees to the driver while the worker that slept in it polls a task.
//!
//! A poll is mostly short, and its worker back in the driver soon. To send another there for each batch of events would
//! cost more than it gives. But the poll may be long, and then timers and sockets would wait for its end although other
//! workers sleep. So one of those that sleep beside the driver keeps watch: it looks up every [`PERIOD`], and where nobody
//! has left the driver for a whole one, and nobody is in it, it goes there itself. If somebody sleeps in it, there is
//! nothing to watch: the watch ends, and the next who leaves the driver calls for one. So an idle runtime sleeps, and a busy
//! one pays one look a period.
//!
//! The rules:
//!
//! 1. Who leaves the driver, after a sleep or a mere look, counts that with [`Watch::left`], and if nobody keeps watch
//!    calls one of the parked workers to do so.
//!    With somebody on watch, a worker calls nobody for the few short tasks that the driver brought it. Should one of them
//!    be long after all, the watch, which sees the driver left alone, takes the others.
//! 2. Who keeps watch is on the list of the parked. Off the list, for work, it gives the watch up ([`Watch::give_up`]) and
//!    does as if it left the driver.
//! 3. The watch ends by [`Watch::stand_down`], which fails if somebody left the driver since the last look. Count and watch
//!    are one word: of the two, that and rule 1, one is first, and sees the other or is seen by it.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use super::super::shim::{AtomicUsize, fence};
use super::idle::Idle;

/// A driver that is left alone is looked after within two of these.
pub(super) const PERIOD: Duration = Duration::from_millis(1);

/// The lower half of the word.
const WHO: usize = 0xFFFF;
const TURN: usize = 1 << 16;

pub(super) struct Watch {
    /// `how often the driver was left << 16 | who keeps watch, plus one`. It guards no memory: all that matters is that
    /// each change sees the one before. So its accesses are relaxed.
    word: AtomicUsize,
}

/// What a look at the watch found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(usize);

impl Watch {
    pub(super) fn new() -> Watch {
        Watch { word: AtomicUsize::new(0) }
    }

    /// The caller has left the driver: who is to be unparked, to keep watch. `in_driver` as for [`Idle::notify`].
    pub(super) fn left(&self, idle: &Idle, in_driver: impl Fn(usize) -> bool) -> Option<usize> {
        let before = self.word.fetch_add(TURN, Relaxed);
        if before & WHO != 0 {
            return None;
        }
        // Ordering: pairs with the fence in `Idle::park`. Either we see the worker that is going to sleep, or it sees that
        // the driver is free.
        fence(SeqCst);
        idle.appoint(in_driver, |worker| self.appoint(worker))
    }

    /// False if somebody else was faster.
    fn appoint(&self, worker: usize) -> bool {
        let with_us = |word: usize| (word & WHO == 0).then_some(word + worker + 1);
        self.word.fetch_update(Relaxed, Relaxed, with_us).is_ok()
    }

    /// Whether somebody keeps watch, as of a moment ago.
    pub(super) fn is_kept(&self) -> bool {
        self.word.load(Relaxed) & WHO != 0
    }

    /// What there is to compare with later, if `worker` keeps the watch.
    pub(super) fn look(&self, worker: usize) -> Option<Seen> {
        let word = self.word.load(Relaxed);
        (word & WHO == worker + 1).then_some(Seen(word))
    }

    /// Ends the watch of the caller. False, and it does not, if somebody left the driver since `seen`.
    pub(super) fn stand_down(&self, seen: Seen) -> bool {
        self.word.compare_exchange(seen.0, seen.0 & !WHO, Relaxed, Relaxed).is_ok()
    }

    /// `worker` has other things to do. Whether it kept the watch until now.
    pub(super) fn give_up(&self, worker: usize) -> bool {
        let kept = self.look(worker).is_some();
        if kept {
            // Nobody else changes this half while it is ours.
            self.word.fetch_sub(worker + 1, Relaxed);
        }
        kept
    }
}
