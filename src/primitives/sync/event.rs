//! The state of an event between loops and threads: a flag, and a line of those who wait for it, under one lock.
//!
//! As for the queue, the lock is taken by attached threads only, and no Python code runs under it.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;

use super::line::{Line, Seat, Tried};
use super::sleeper::{running_address, wake_all};
use crate::capi::Raised;
use crate::capi::collector::Visitor;
use crate::capi::inspect::boolean;
use crate::poison::unpoisoned;
use crate::primitives::simulated::runs;
use crate::wait_queue::Place;

#[derive(Debug)]
struct EventState {
    is_set: bool,
    /// See [`runs`].
    made_in_run: u32,
    waiters: Line,
}

/// An event, as far as it is not a Python object.
#[derive(Debug)]
pub(super) struct Event(Mutex<EventState>);

// SAFETY: as for `Queue`: the lock guards the state, and attached threads alone use and drop what is in it.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Default for Event {
    fn default() -> Event {
        Event(Mutex::new(EventState { is_set: false, made_in_run: runs(), waiters: Line::new() }))
    }
}

impl Event {
    fn lock(&self) -> MutexGuard<'_, EventState> {
        // The lock may be poisoned: no code under it panics half-way.
        unpoisoned(self.0.lock())
    }

    pub(super) fn is_set(&self) -> bool {
        self.lock().is_set
    }

    pub(super) fn set(&self, py: Python<'_>) -> Result<(), Raised> {
        let mut state = self.lock();
        state.is_set = true;
        let waiters = state.waiters.queue().serve_all();
        drop(state);
        wake_all(py, waiters.into_iter())
    }

    pub(super) fn clear(&self) {
        self.lock().is_set = false;
    }

    pub(super) fn wait(&self, seat: &mut Seat) -> Tried {
        let mut state = self.lock();
        if state.is_set {
            return Tried::Done(boolean(true));
        }
        seat.take_in(&mut state.waiters)
    }

    /// As [`Queue::is_shared`](super::queue::Queue::is_shared).
    pub(super) fn is_shared(&self, run: u32) -> bool {
        let running = running_address();
        let state = self.lock();
        state.made_in_run < run || state.waiters.waiters().any(|each| each.is_beside(running))
    }

    pub(super) fn is_waiting(&self, place: Place) -> bool {
        self.lock().waiters.queue().waiter(place).is_some()
    }

    pub(super) fn leave(&self, place: Place) {
        let left = self.lock().waiters.queue().leave(place);
        drop(left);
    }

    /// Shows the collector every task that waits. Called by the one Python object of the event.
    pub(super) fn visit(&self, visitor: &mut Visitor) {
        self.lock().waiters.waiters().for_each(|sleeper| sleeper.visit(visitor));
    }

    /// Drops the tasks that wait, for the collector.
    pub(super) fn drop_waiters(&self) {
        let waiters = self.lock().waiters.queue().serve_all();
        drop(waiters);
    }

    pub(super) fn waiters(&self) -> usize {
        self.lock().waiters.waiters().count()
    }
}
