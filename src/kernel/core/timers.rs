//! The loop's timers: a heap of TimerHandles, ordered by their time on the clock of `loop.time()`.

use std::cell::Cell;

use super::super::handle::layout::{HandleRef, TimerRef};
use crate::capi::Ref;
use crate::capi::loop_cell::LoopCell;
use crate::timer::{Slot, TimerHeap};

/// The most handles that [`Timers::track_shared`] visits; these take some ten microseconds.
const MOST_TRACKED: usize = 1024;

/// The timers. A handle knows its slot in the heap, so `cancel()` removes it at once, and no cancelled timers stay in
/// the heap.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: LoopCell<TimerHeap<f64, TimerRef>>,
    /// The earliest deadline. It is cached because every turn needs it.
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

    /// Adds a handle. A deadline of NaN is due at once: NaN cannot be ordered, so it would break the heap.
    ///
    /// # Errors
    /// Gives the handle back if there is no memory for it. The caller drops it, after the borrow of the heap has ended.
    #[inline(always)]
    pub(crate) fn insert(&self, when: f64, handle: TimerRef) -> Result<(), TimerRef> {
        let when = if when.is_nan() { f64::NEG_INFINITY } else { when };
        self.change(|heap| {
            if heap.try_reserve().is_err() {
                return Err(handle);
            }
            heap.insert(when, handle);
            Ok(())
        })
    }

    /// Removes a handle. The caller drops it, after the borrow of the heap has ended.
    #[inline(always)]
    pub(crate) fn remove(&self, slot: Slot) -> Option<TimerRef> {
        self.change(|heap| heap.remove(slot))
    }

    /// The earliest deadline.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<f64> {
        self.next.get()
    }

    /// The next handle whose deadline is not after `now`, with its deadline.
    #[inline(always)]
    pub(crate) fn pop_due(&self, now: f64) -> Option<(f64, HandleRef)> {
        self.change(|heap| heap.pop_due(now)).map(|(due, timer)| (due, timer.into_handle()))
    }

    /// All handles, ordered by their deadlines.
    pub(crate) fn in_order(&self) -> Vec<Ref> {
        self.heap.with(|heap| {
            heap.in_order().into_iter().map(|timer| timer.handle().object().clone_ref()).collect()
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.with(|heap| heap.len())
    }

    /// Removes the handle with the earliest deadline, even if it is not due.
    pub(crate) fn pop(&self) -> Option<HandleRef> {
        self.change(TimerHeap::pop).map(|(_, timer)| timer.into_handle())
    }

    /// Called when the loop stops running, because it may then become garbage together with tasks that wait for timers.
    /// From now on the garbage collector tracks those handles that have other references. With very many timers this
    /// does nothing, because it would take too long.
    pub(crate) fn track_shared(&self) {
        self.heap.with(|heap| {
            if heap.len() <= MOST_TRACKED {
                heap.iter().for_each(|(_, timer)| timer.track_shared());
            }
        });
    }

    /// For the garbage collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        self.heap.with(|heap| heap.iter().for_each(|(_, timer)| visit(timer.handle().object())));
    }
}
