//! When each task has ended its last step, for a program that asks for it (`wakeloop.track_waits`).
//!
//! The loop's thread writes it, and any thread may read it, both in a section of the loop. No Python code runs while the
//! table is borrowed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr::null_mut;

use pyo3::ffi;

use crate::capi::{Raised, Ref};

/// The last steps by the addresses of the tasks. A task that is done has no entry. One that was destroyed before that
/// leaves its own, and the next task at its address may make its first step outside of the loop.
#[derive(Debug, Default)]
pub(crate) struct StepTimes(RefCell<HashMap<usize, LastStep>>);

#[derive(Debug)]
struct LastStep {
    /// A weak reference.
    task: Ref,
    /// In nanoseconds of CLOCK_MONOTONIC.
    ended: u64,
}

impl StepTimes {
    /// A task has ended a step.
    pub(crate) fn note(&self, task: &Ref, done: bool, now: u64) -> Result<(), Raised> {
        let mut times = self.0.borrow_mut();
        if done {
            times.remove(&address(task));
            return Ok(());
        }
        if let Some(step) = times.get_mut(&address(task)).filter(|step| step.is_of(task)) {
            step.ended = now;
            return Ok(());
        }
        // SAFETY: a live object; an owned reference, or null with an error.
        let weak = unsafe { Ref::from_owned(ffi::PyWeakref_NewRef(task.as_ptr(), null_mut())) };
        times.insert(address(task), LastStep { task: weak.ok_or(Raised)?, ended: now });
        Ok(())
    }

    pub(crate) fn of(&self, task: &Ref) -> Option<u64> {
        self.0.borrow().get(&address(task)).filter(|step| step.is_of(task)).map(|step| step.ended)
    }

    pub(crate) fn clear(&self) {
        self.0.take();
    }
}

impl LastStep {
    fn is_of(&self, task: &Ref) -> bool {
        let mut referent = null_mut();
        // SAFETY: `note` has made the weak reference. The call stores an owned reference or null.
        unsafe {
            ffi::compat::PyWeakref_GetRef(self.task.as_ptr(), &mut referent);
            Ref::from_owned(referent).is_some_and(|referent| referent.as_ptr() == task.as_ptr())
        }
    }
}

fn address(task: &Ref) -> usize {
    task.as_ptr() as usize
}
