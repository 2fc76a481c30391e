//! What can be waited for, by tasks and by threads in the same way.

use std::sync::Arc;

use pyo3::prelude::*;

use super::event::Event;
use super::line::{Seat, Tried};
use super::queue::{Queue, Side};
use crate::capi::inspect::boolean;
use crate::capi::{Raised, Ref, Slot};
use crate::wait_queue::Place;

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
