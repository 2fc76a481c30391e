//! The loop's timers: the shared heap, keyed by seconds on the clock of `loop.time()`.

use std::cell::UnsafeCell;

use super::super::handle::layout::{HandleRef, TimerRef};
use crate::capi::Ref;
use crate::timer::{Slot, TimerHeap};

/// So many handles are looked at in some ten microseconds: see [`Timers::track_shared`].
const MOST_TRACKED: usize = 1024;

/// Deadlines and the handles that wait for them. A handle knows its place, so a cancel removes it at once: no dead timers
/// are left in the heap.
#[derive(Debug)]
pub(crate) struct Timers(UnsafeCell<TimerHeap<f64, TimerRef>>);

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers(UnsafeCell::new(TimerHeap::new()))
    }

    /// Adds a handle. A deadline that is not a number is due at once: it compares with nothing, and a heap
    /// in which it stayed would lose its order.
    #[inline(always)]
    pub(crate) fn insert(&self, when: f64, handle: TimerRef) {
        let when = if when.is_nan() { f64::NEG_INFINITY } else { when };
        // SAFETY: GIL held; inserting moves entries and runs nothing.
        unsafe { (*self.0.get()).insert(when, handle) }
    }

    /// Takes a handle out. The caller drops it, when the heap is no longer borrowed.
    #[inline(always)]
    pub(crate) fn remove(&self, slot: Slot) -> Option<TimerRef> {
        // SAFETY: as in `insert`.
        unsafe { (*self.0.get()).remove(slot) }
    }

    /// The earliest deadline.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<f64> {
        // SAFETY: as in `insert`.
        unsafe { (*self.0.get()).peek() }
    }

    /// The next handle whose deadline is not after `now`.
    #[inline(always)]
    pub(crate) fn pop_due(&self, now: f64) -> Option<HandleRef> {
        // SAFETY: as in `insert`.
        unsafe { (*self.0.get()).pop_due(now) }.map(|(_, handle)| handle.into_handle())
    }

    /// All handles, in the order in which they are due.
    pub(crate) fn in_order(&self) -> Vec<Ref> {
        // SAFETY: as in `insert`.
        unsafe { (*self.0.get()).in_order() }
            .into_iter()
            .map(|handle| handle.handle().object().clone_ref())
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        // SAFETY: as in `insert`.
        unsafe { (*self.0.get()).len() }
    }

    /// Takes out the next handle, due or not.
    pub(crate) fn pop(&self) -> Option<HandleRef> {
        // SAFETY: as in `insert`.
        unsafe { (*self.0.get()).pop() }.map(|(_, handle)| handle.into_handle())
    }

    /// The loop stops running, and may become garbage together with tasks that wait in it: from now on the collector
    /// sees the handles that others hold too. A loop with very many timers is not looked through at each stop.
    pub(crate) fn track_shared(&self) {
        // SAFETY: as in `insert`; to track an object runs nothing.
        let heap = unsafe { &*self.0.get() };
        if heap.len() <= MOST_TRACKED {
            for (_, handle) in heap.iter() {
                handle.track_shared();
            }
        }
    }

    /// For the collector.
    ///
    /// # Safety
    /// Called by the collector; `visit` runs no Python code.
    pub(crate) unsafe fn traverse(&self, visit: &mut dyn FnMut(*mut pyo3::ffi::PyObject) -> i32) -> i32 {
        // SAFETY: nothing moves the heap while the collector visits.
        for (_, handle) in unsafe { (*self.0.get()).iter() } {
            let result = visit(handle.handle().object().as_ptr());
            if result != 0 {
                return result;
            }
        }
        0
    }
}
