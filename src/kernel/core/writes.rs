//! Transports that hold written data, and the number of the step that writes.
//!
//! A transport holds a write while the next one is due (`transport/base/write_habit.rs`). At most one transport of a
//! loop does: before another one writes, the first sends what it holds, so that data leaves in the order of the writes.
//! The rest is sent when the step ends.

use std::cell::Cell;

use crate::capi::loop_cell::LoopQueue;
use crate::capi::{Fatal, Ref};

/// Sends what a transport holds. `C` is the loop's core.
pub(crate) type Flush<C> = fn(&Ref, &C) -> Result<(), Fatal>;

#[derive(Debug)]
pub(crate) struct Writes<C> {
    /// The transports, each with its function.
    pub(crate) queue: LoopQueue<(Ref, Flush<C>)>,
    /// Counts the steps in which something was written.
    step: Cell<u64>,
    /// Something was written in this step, or is held.
    wrote: Cell<bool>,
}

impl<C> Writes<C> {
    pub(crate) fn new() -> Writes<C> {
        Writes { queue: LoopQueue::default(), step: Cell::new(1), wrote: Cell::new(false) }
    }

    /// The number of the current step, in which something is now written. A step is a callback, a step of a task, or an
    /// event.
    #[inline(always)]
    pub(crate) fn step(&self) -> u64 {
        self.wrote.set(true);
        self.step.get()
    }

    /// Calls `flush` with a transport when the step ends.
    #[inline(always)]
    pub(crate) fn hold(&self, object: Ref, flush: Flush<C>) {
        self.wrote.set(true);
        self.queue.push((object, flush));
    }

    /// The step has ended. Was something written in it? Only then, something may be held.
    #[inline(always)]
    pub(crate) fn end_step(&self) -> bool {
        self.wrote.get() && {
            self.wrote.set(false);
            self.step.set(self.step.get().wrapping_add(1));
            true
        }
    }
}
