//! The line of those who wait for a queue or an event, and the seat of one of them.

use super::sleeper::Sleeper;
use crate::capi::Ref;
use crate::fork::Owner;
use crate::wait_queue::{Place, WaitQueue};

/// A line of waiters. In a forked child they are tasks and threads of the parent, and the first use of the line forgets
/// them.
#[derive(Debug)]
pub(super) struct Line {
    waiting: WaitQueue<Sleeper>,
    owner: Owner,
}

impl Line {
    pub(super) fn new() -> Line {
        Line { waiting: WaitQueue::default(), owner: Owner::this_process() }
    }

    #[inline(always)]
    pub(super) fn queue(&mut self) -> &mut WaitQueue<Sleeper> {
        if !self.owner.is_this_process() {
            self.owner.adopt();
            // Dropping them would release objects and descriptors that the parent's loop still uses here.
            self.waiting.leak();
        }
        &mut self.waiting
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = &Sleeper> {
        self.waiting.waiters()
    }
}

/// The part of one who may have to wait: the place that it has had, and what to wake.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) place: Option<Place>,
    /// Without one, an attempt that cannot succeed is refused.
    pub(super) sleeper: Option<Sleeper>,
}

impl Seat {
    /// Joins the line.
    pub(super) fn take_in(&mut self, line: &mut Line) -> Tried {
        match self.sleeper.take() {
            Some(sleeper) => Tried::Waits(line.queue().join(self.place, sleeper)),
            None => Tried::Refused,
        }
    }

    /// Uses the notification that the earlier wait may have brought.
    pub(super) fn leave(&self, line: &mut Line) {
        if let Some(place) = self.place {
            line.queue().consume(place);
        }
    }
}

/// The result of an attempt.
#[derive(Debug)]
pub(super) enum Tried {
    Done(Ref),
    Waits(Place),
    /// It cannot be done now.
    Refused,
}
