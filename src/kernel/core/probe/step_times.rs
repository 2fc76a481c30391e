//! When each task has ended its last step, for a program that asks for it (`wakeloop.track_waits`).
//!
//! The loop's thread writes it, and any thread may read it, both in a section of the loop. No Python code runs while the
//! table is borrowed.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::capi::Ref;

/// The times in nanoseconds of CLOCK_MONOTONIC, by the addresses of the tasks. A task that is done has no entry.
#[derive(Debug, Default)]
pub(crate) struct StepTimes(RefCell<HashMap<usize, u64>>);

impl StepTimes {
    /// A task has ended a step.
    pub(crate) fn note(&self, task: &Ref, done: bool, now: u64) {
        let mut times = self.0.borrow_mut();
        if done {
            times.remove(&address(task));
        } else {
            times.insert(address(task), now);
        }
    }

    pub(crate) fn of(&self, task: &Ref) -> Option<u64> {
        self.0.borrow().get(&address(task)).copied()
    }

    pub(crate) fn clear(&self) {
        self.0.take();
    }
}

fn address(task: &Ref) -> usize {
    task.as_ptr() as usize
}
