//! The state of a queue between loops and threads.
//!
//! It is one lock around a ring of objects, with a line of those who wait for an object, one of those who wait for room,
//! and one of those who wait until all objects are done with.
//!
//! - An object stays in the ring until somebody takes it. So it is not lost when the one who was woken for it is
//!   cancelled, or when that one's loop is closed.
//! - Putting an object notifies the first getter that waits, and taking one notifies the first putter. Who is notified
//!   and leaves without an object, or without having put one, passes the notification on.
//! - The lock is taken by attached threads only, and no Python code runs under it: no object is dropped, compared or
//!   printed, and no loop is woken. So it never waits for the GIL, and the collector may take it while all other threads
//!   are stopped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;

use super::line::{Line, Seat, Tried};
use super::sleeper::{Sleeper, running_address, wake, wake_all, wake_quietly};
use crate::capi::collector::Visitor;
use crate::capi::error::no_memory;
use crate::capi::imports::support;
use crate::capi::{Exception, Raised, Ref, Slot};
use crate::poison::unpoisoned;
use crate::primitives::simulated::runs;
use crate::wait_queue::{Left, Place, WaitQueue};

#[derive(Debug)]
struct QueueState {
    items: VecDeque<Ref>,
    /// Zero or less: any number of items.
    maxsize: i64,
    unfinished: usize,
    is_shutdown: bool,
    /// See [`runs`].
    made_in_run: u32,
    getters: Line,
    putters: Line,
    joiners: Line,
}

impl QueueState {
    fn is_full(&self) -> bool {
        usize::try_from(self.maxsize).is_ok_and(|most| most > 0 && self.items.len() >= most)
    }

    fn line(&mut self, side: Side) -> &mut WaitQueue<Sleeper> {
        match side {
            Side::Get => self.getters.queue(),
            Side::Put => self.putters.queue(),
            Side::Join => self.joiners.queue(),
        }
    }

    /// Is there something for the first in line?
    fn has_for(&self, side: Side) -> bool {
        match side {
            Side::Get => !self.items.is_empty(),
            Side::Put => !self.is_full(),
            Side::Join => false,
        }
    }

    /// Notifies the first in line whose loop is not closed.
    fn notify(&mut self, side: Side) -> Woken {
        let (line, mut gone) = (self.line(side), Vec::new());
        while let Some((place, sleeper)) = line.notify_first() {
            if !sleeper.is_gone() {
                return Woken { first: Some((side, place, sleeper)), gone };
            }
            line.consume(place);
            gone.push(sleeper);
        }
        Woken { first: None, gone }
    }

    /// Counts items that are done with. Returns those who have waited for the last one.
    fn finish(&mut self, count: usize) -> Vec<Sleeper> {
        self.unfinished = self.unfinished.saturating_sub(count);
        if self.unfinished == 0 { self.line(Side::Join).serve_all() } else { Vec::new() }
    }
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Get,
    Put,
    Join,
}

/// Who is to be woken after unlocking, and who can be dropped then.
#[must_use]
struct Woken {
    first: Option<(Side, Place, Sleeper)>,
    gone: Vec<Sleeper>,
}

impl Woken {
    const NOBODY: Woken = Woken { first: None, gone: Vec::new() };
}

/// A queue, as far as it is not a Python object.
#[derive(Debug)]
pub(super) struct Queue(Mutex<QueueState>);

// SAFETY: the lock guards the state. What is in it, references included, is used and dropped by attached threads only:
// the methods run on such threads, and a message to a loop, which may own the last reference to the queue, attaches its
// thread before it drops that (see `sleeper::Message`).
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Default for Queue {
    fn default() -> Queue {
        Queue(Mutex::new(QueueState {
            items: VecDeque::new(),
            maxsize: 0,
            unfinished: 0,
            is_shutdown: false,
            made_in_run: runs(),
            getters: Line::new(),
            putters: Line::new(),
            joiners: Line::new(),
        }))
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // The lock may be poisoned: no code under it panics half-way.
        unpoisoned(self.0.lock())
    }

    /// Puts what is in `item`, which is then empty.
    pub(super) fn put(
        self: &Arc<Queue>,
        py: Python<'_>,
        item: &Slot,
        seat: &mut Seat,
    ) -> Result<Tried, Raised> {
        let mut state = self.lock();
        if state.is_shutdown {
            drop(state);
            return Err(shut_down(py));
        }
        if state.is_full() {
            return Ok(seat.take_in(&mut state.putters));
        }
        if state.items.try_reserve(1).is_err() {
            drop(state);
            return Err(no_memory());
        }
        let Some(object) = item.take() else { return Ok(Tried::Refused) };
        state.items.push_back(object);
        state.unfinished += 1;
        seat.leave(&mut state.putters);
        let woken = state.notify(Side::Get);
        drop(state);
        self.wake(py, woken)?;
        Ok(Tried::Done(Ref::none()))
    }

    pub(super) fn get(self: &Arc<Queue>, py: Python<'_>, seat: &mut Seat) -> Result<Tried, Raised> {
        let mut state = self.lock();
        let Some(item) = state.items.pop_front() else {
            if state.is_shutdown {
                drop(state);
                return Err(shut_down(py));
            }
            return Ok(seat.take_in(&mut state.getters));
        };
        seat.leave(&mut state.getters);
        let woken = if state.is_full() { Woken::NOBODY } else { state.notify(Side::Put) };
        drop(state);
        self.wake(py, woken)?;
        Ok(Tried::Done(item))
    }

    /// Waits until all items are done with.
    pub(super) fn join(&self, seat: &mut Seat) -> Tried {
        let mut state = self.lock();
        if state.unfinished == 0 {
            return Tried::Done(Ref::none());
        }
        seat.take_in(&mut state.joiners)
    }

    /// May others than the loop that runs on this thread notify one who waits? Others wait too, or the queue is older
    /// than this run of a testing loop.
    pub(super) fn is_shared(&self, run: u32) -> bool {
        let running = running_address();
        let state = self.lock();
        let lines = [&state.getters, &state.putters, &state.joiners];
        state.made_in_run < run || lines.iter().any(|line| line.waiters().any(|each| each.is_beside(running)))
    }

    pub(super) fn is_waiting(&self, side: Side, place: Place) -> bool {
        self.lock().line(side).waiter(place).is_some()
    }

    /// Leaves the line, and passes a notification on.
    pub(super) fn leave(self: &Arc<Queue>, py: Python<'_>, side: Side, place: Place) {
        let mut state = self.lock();
        let left = state.line(side).leave(place);
        let woken = match left {
            Left::Notified if state.has_for(side) => state.notify(side),
            _ => Woken::NOBODY,
        };
        drop(state);
        if let Some((side, place, sleeper)) = woken.first {
            wake_quietly(py, sleeper, self.pass_on(side, place));
        }
        drop((left, woken.gone));
    }

    /// What is done if the one that was notified does not hear of it.
    fn pass_on(self: &Arc<Queue>, side: Side, place: Place) -> impl FnOnce(Python<'_>) + Send + 'static {
        let queue = self.clone();
        move |py| queue.leave(py, side, place)
    }

    #[inline(always)]
    fn wake(self: &Arc<Queue>, py: Python<'_>, woken: Woken) -> Result<(), Raised> {
        drop(woken.gone);
        match woken.first {
            Some((side, place, sleeper)) => wake(py, sleeper, self.pass_on(side, place)),
            None => Ok(()),
        }
    }

    pub(super) fn task_done(&self, py: Python<'_>) -> Result<(), Raised> {
        let mut state = self.lock();
        if state.unfinished == 0 {
            drop(state);
            return Err(Exception::ValueError.raise("task_done() called too many times"));
        }
        let joiners = state.finish(1);
        drop(state);
        wake_all(py, joiners.into_iter())
    }

    pub(super) fn shut_down(&self, py: Python<'_>, immediate: bool) -> Result<(), Raised> {
        let mut state = self.lock();
        state.is_shutdown = true;
        let mut dropped = VecDeque::new();
        let mut woken = Vec::new();
        if immediate {
            dropped = std::mem::take(&mut state.items);
            woken = state.finish(dropped.len());
        }
        woken.extend(state.line(Side::Get).serve_all());
        woken.extend(state.line(Side::Put).serve_all());
        drop(state);
        let result = wake_all(py, woken.into_iter());
        drop(dropped);
        result
    }

    pub(super) fn len(&self) -> usize {
        self.lock().items.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    pub(super) fn maxsize(&self) -> i64 {
        self.lock().maxsize
    }

    pub(super) fn set_maxsize(&self, maxsize: i64) {
        self.lock().maxsize = maxsize;
    }

    /// The size, the number of items that are not done with, and whether it was shut down.
    pub(super) fn summary(&self) -> (usize, usize, bool) {
        let state = self.lock();
        (state.items.len(), state.unfinished, state.is_shutdown)
    }

    /// Shows the collector every item, and every task that waits. Called by the one Python object of the queue.
    pub(super) fn visit(&self, visitor: &mut Visitor) {
        let state = self.lock();
        state.items.iter().for_each(|item| visitor.reference(item));
        for line in [&state.getters, &state.putters, &state.joiners] {
            line.waiters().for_each(|sleeper| sleeper.visit(visitor));
        }
    }

    /// Drops everything, for the collector.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        let items = std::mem::take(&mut state.items);
        let sleepers = [Side::Get, Side::Put, Side::Join].map(|side| state.line(side).serve_all());
        drop(state);
        drop((items, sleepers));
    }
}

/// `raise wakeloop.QueueShutDown`.
#[cold]
fn shut_down(py: Python<'_>) -> Raised {
    raise_class(support(py, "QueueShutDown"))
}

/// Raises an exception of this class, without a message, as the queues of the standard library do.
#[cold]
pub(super) fn raise_class(class: PyResult<Bound<'_, PyAny>>) -> Raised {
    let made = class.map_err(Raised::from).and_then(|class| Ref::from(class).call(&[]));
    made.map_or_else(|raised| raised, crate::capi::error::raise)
}
