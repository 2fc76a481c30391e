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
    /// Counts the steps: callbacks, steps of tasks, and events.
    step: Cell<u64>,
}

impl<C> Writes<C> {
    pub(crate) fn new() -> Writes<C> {
        Writes { queue: LoopQueue::default(), step: Cell::new(1) }
    }

    /// The number of the current step.
    #[inline(always)]
    pub(crate) fn step(&self) -> u64 {
        self.step.get()
    }

    #[inline(always)]
    pub(crate) fn next_step(&self) {
        self.step.set(self.step.get().wrapping_add(1));
    }
}
