//! Names the task or callback for which a loop waits busily, and keeps it for the window.

use super::super::core::probe::busy_waits::{Sampled, Suspicion};
use super::super::core::{Core, Entry};
use crate::capi::error::unless_raised;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::{Fatal, Ref};
use crate::clock::{monotonic_nanos, thread_nanos};

/// Looks at the counters. Called before a poll, twice a second.
#[cold]
pub(in crate::kernel) fn look(core: &Core, now: u64) {
    let suspicion = core.probe.busy_waits.look(now, thread_nanos(), core.probe.counters);
    core.instrumentation.set_sampled(suspicion == Suspicion::Sample);
    if suspicion == Suspicion::None {
        core.probe.registered.end_busy_wait();
    }
}

/// The run of the loop ends.
pub(in crate::kernel) fn leave(core: &Core) {
    core.instrumentation.set_sampled(false);
    core.probe.registered.end_busy_wait();
}

/// An entry is about to run, and the loop is suspected. Keeps the entry if it is the one that waits busily.
pub(in crate::kernel) fn note(core: &Core, entry: &Entry) -> Result<(), Fatal> {
    let callback = match entry {
        Entry::Call { callback, .. } => Some(callback.clone_ref()),
        Entry::Handle(handle) => handle.callback(),
        Entry::Native { .. } | Entry::Foreign(_) => None,
    };
    let noted = core.probe.busy_waits.note(callback.as_ref().map(key), core.turn_number());
    if noted != Sampled::Continue {
        core.instrumentation.set_sampled(false);
    }
    let (Sampled::Found, Some(callback)) = (noted, callback) else { return Ok(()) };
    core.probe.counters.busy_waits.add(1);
    let nanos = monotonic_nanos().saturating_sub(core.probe.busy_waits.since());
    // If memory has run out, nothing is kept.
    let Some(nanos) = unless_raised(integer(nanos as i64)) else { return Ok(()) };
    core.support("keep_busy_wait", &[core.borrow(), nanos.borrow(), callback.borrow()])
}

/// The same for each step of a task, and for each method of the same object with the same function. Runs no Python
/// code.
fn key(callback: &Ref) -> usize {
    let function = match callback.method_function() {
        Some(function) => function.as_ptr() as usize,
        None => match callback.builtin_names() {
            Some((name, _)) => name.as_ptr() as usize,
            None => 0,
        },
    };
    let bound = callback
        .has_immutable_class()
        .then(|| unless_raised(callback.getattr(&imports().__self__)))
        .flatten();
    match bound {
        Some(object) if !object.is_none() => (object.as_ptr() as usize).rotate_left(17) ^ function,
        _ => callback.as_ptr() as usize,
    }
}
