//! The loop's timers: the shared heap, keyed by seconds on the clock of `loop.time()`.

use std::cell::Cell;

use super::super::handle::layout::{HandleRef, TimerRef};
use crate::capi::Ref;
use crate::capi::loop_cell::LoopCell;
use crate::timer::{Slot, TimerHeap};

/// So many handles are looked at in some ten microseconds: see [`Timers::track_shared`].
const MOST_TRACKED: usize = 1024;

/// Deadlines and the handles that wait for them. A handle knows its place, so a cancel removes it at once: no dead timers
/// are left in the heap.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: LoopCell<TimerHeap<f64, TimerRef>>,
    /// The earliest deadline, which every turn asks for.
    next: Cell<Option<f64>>,
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers { heap: LoopCell::new(TimerHeap::new()), next: Cell::new(None) }
    }

    #[inline(always)]
    fn change<T>(&self, change: impl FnOnce(&mut TimerHeap<f64, TimerRef>) -> T) -> T {
        self.heap.with(|heap| {
            let result = change(heap);
            self.next.set(heap.peek());
            result
        })
    }

    /// Adds a handle. A deadline that is not a number is due at once: it compares with nothing, and a heap in which it
    /// stayed would lose its order.
    #[inline(always)]
    pub(crate) fn insert(&self, when: f64, handle: TimerRef) {
        let when = if when.is_nan() { f64::NEG_INFINITY } else { when };
        self.change(|heap| heap.insert(when, handle));
    }

    /// Takes a handle out. The caller drops it, when the heap is no longer borrowed.
    #[inline(always)]
    pub(crate) fn remove(&self, slot: Slot) -> Option<TimerRef> {
        self.change(|heap| heap.remove(slot))
    }

    /// The earliest deadline.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<f64> {
        self.next.get()
    }

    /// The next handle whose deadline is not after `now`.
    #[inline(always)]
    pub(crate) fn pop_due(&self, now: f64) -> Option<HandleRef> {
        self.change(|heap| heap.pop_due(now)).map(|(_, timer)| timer.into_handle())
    }

    /// All handles, in the order in which they are due.
    pub(crate) fn in_order(&self) -> Vec<Ref> {
        self.heap.with(|heap| {
            heap.in_order().into_iter().map(|timer| timer.handle().object().clone_ref()).collect()
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.with(|heap| heap.len())
    }

    /// Takes out the next handle, due or not.
    pub(crate) fn pop(&self) -> Option<HandleRef> {
        self.change(TimerHeap::pop).map(|(_, timer)| timer.into_handle())
    }

    /// The loop stops running, and may become garbage together with tasks that wait in it: from now on the collector
    /// sees the handles that others hold too. A loop with very many timers is not looked through at each stop.
    pub(crate) fn track_shared(&self) {
        self.heap.with(|heap| {
            if heap.len() <= MOST_TRACKED {
                heap.iter().for_each(|(_, timer)| timer.track_shared());
            }
        });
    }

    /// For the collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        self.heap.with(|heap| heap.iter().for_each(|(_, timer)| visit(timer.handle().object())));
    }
}
