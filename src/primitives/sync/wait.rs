//! What can be waited for, by tasks and by threads in the same way.

use std::sync::Arc;

use pyo3::prelude::*;

use super::event::Event;
use super::queue::{Queue, Side};
use super::sleeper::Sleeper;
use crate::capi::inspect::boolean;
use crate::capi::{Raised, Ref, Slot};
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

/// Something that may have to wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    Queue(&'a Arc<Queue>, Side),
    Event(&'a Event),
}

impl Wanted<'_> {
    /// Tries. What is to be put is taken from `item`.
    #[inline(always)]
    pub(super) fn attempt(self, py: Python<'_>, item: &Slot, seat: &mut Seat) -> Result<Tried, Raised> {
        match self {
            Wanted::Queue(queue, Side::Get) => queue.get(py, seat),
            Wanted::Queue(queue, Side::Put) => queue.put(py, item, seat),
            Wanted::Queue(queue, Side::Join) => Ok(queue.join(seat)),
            Wanted::Event(event) => Ok(event.wait(seat)),
        }
    }

    /// The result of one who was woken and need not try again, because all who waited were served at once.
    pub(super) fn when_served(self) -> Option<Ref> {
        match self {
            Wanted::Queue(_, Side::Get | Side::Put) => None,
            Wanted::Queue(_, Side::Join) => Some(Ref::none()),
            Wanted::Event(_) => Some(boolean(true)),
        }
    }

    pub(super) fn is_waiting(self, place: Place) -> bool {
        match self {
            Wanted::Queue(queue, side) => queue.is_waiting(side, place),
            Wanted::Event(event) => event.is_waiting(place),
        }
    }

    pub(super) fn is_shared(self, run: u32) -> bool {
        match self {
            Wanted::Queue(queue, _) => queue.is_shared(run),
            Wanted::Event(event) => event.is_shared(run),
        }
    }

    pub(super) fn leave(self, py: Python<'_>, place: Place) {
        match self {
            Wanted::Queue(queue, side) => queue.leave(py, side, place),
            Wanted::Event(event) => event.leave(place),
        }
    }
}
