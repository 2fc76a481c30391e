//! The timer heap that both halves of wakeloop use: the event loop for its handles, the runtime for its sleeps.
//!
//! A 4-ary min-heap of `(when, sequence, item)`. Three properties make it fit for timers:
//!
//! - **Removal is real.** The heap tells every item where it stands ([`Slotted::set_slot`]), so a cancelled
//!   timer leaves at once, in O(log n). Nothing dead is kept, counted or swept later.
//! - **Equal deadlines fire in the order they were inserted.** The sequence number breaks ties.
//! - **Items move, they are never cloned.** A sift opens a hole and shifts entries through it: one move and one
//!   `set_slot` per level.
//!
//! Four children instead of two halve the height, and the four keys a step compares lie next to each other.
//!
//! Policy-free: no clock, no threads, no lock. The owner decides what `K` means (seconds as `f64`, `Instant`, …)
//! and serialises access. Deadlines must be comparable with each other: a NaN among `f64` deadlines never
//! endangers memory, but it leaves the order unspecified.

use std::fmt;
use std::iter::FusedIterator;
use std::rc::Rc;
use std::sync::Arc;

mod hole;

use hole::Hole;

const ARITY: usize = 4;

/// Where an item stands in a [`TimerHeap`]; [`Slot::NONE`] while it is in none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(u32);

impl Slot {
    /// The item is in no heap.
    pub const NONE: Slot = Slot(u32::MAX);

    /// Whether the item is in no heap.
    pub const fn is_none(self) -> bool {
        self.0 == u32::MAX
    }

    fn from_index(index: usize) -> Slot {
        // `insert` refuses to grow to an index that does not fit.
        Slot(index as u32)
    }

    /// The raw number, for owners that keep the slot in an atomic.
    pub const fn to_raw(self) -> u32 {
        self.0
    }

    /// The inverse of [`Slot::to_raw`].
    pub const fn from_raw(raw: u32) -> Slot {
        Slot(raw)
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot::NONE
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() { f.write_str("Slot(none)") } else { write!(f, "Slot({})", self.0) }
    }
}

/// An item that remembers its place in the heap, so that it can be removed later.
///
/// The heap calls `set_slot` every time the item comes to rest: after an insertion, whenever another insertion or
/// removal moved it, and with [`Slot::NONE`] when it leaves. The implementation stores the value (in a `Cell` or
/// a relaxed atomic) and must not touch the heap.
pub trait Slotted {
    /// Remember `slot`.
    fn set_slot(&self, slot: Slot);
}

impl<T: Slotted + ?Sized> Slotted for &T {
    fn set_slot(&self, slot: Slot) {
        (**self).set_slot(slot);
    }
}

impl<T: Slotted + ?Sized> Slotted for Box<T> {
    fn set_slot(&self, slot: Slot) {
        (**self).set_slot(slot);
    }
}

impl<T: Slotted + ?Sized> Slotted for Rc<T> {
    fn set_slot(&self, slot: Slot) {
        (**self).set_slot(slot);
    }
}

impl<T: Slotted + ?Sized> Slotted for Arc<T> {
    fn set_slot(&self, slot: Slot) {
        (**self).set_slot(slot);
    }
}

/// One element of the heap.
struct Entry<K, T> {
    when: K,
    seq: u64,
    item: T,
}

impl<K: Copy + PartialOrd, T> Entry<K, T> {
    fn before(&self, other: &Self) -> bool {
        self.when < other.when || (self.when == other.when && self.seq < other.seq)
    }
}

/// A min-heap of deadlines. See the module's head.
pub struct TimerHeap<K: Copy + PartialOrd, T: Slotted> {
    entries: Vec<Entry<K, T>>,
    next_seq: u64,
}

impl<K: Copy + PartialOrd, T: Slotted> TimerHeap<K, T> {
    /// An empty heap; allocates nothing yet.
    pub const fn new() -> Self {
        TimerHeap { entries: Vec::new(), next_seq: 0 }
    }

    /// How many items are waiting.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no item is waiting.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds `item`, due at `when`, behind every item with an equal deadline.
    ///
    /// # Panics
    /// If the heap already holds 2^32 - 1 items.
    pub fn insert(&mut self, when: K, item: T) {
        let index = self.entries.len();
        assert!(index < Slot::NONE.0 as usize, "too many timers");
        let seq = self.next_seq;
        self.next_seq += 1;
        self.entries.push(Entry { when, seq, item });
        self.sift_up(index);
    }

    /// Takes the item at `slot` out and sets its slot to [`Slot::NONE`].
    ///
    /// `None` if `slot` is `NONE` or beyond the end. A slot is only meaningful together with the item that holds
    /// it: a stale slot removes whichever item stands there now.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        self.take(slot.0 as usize).map(|entry| entry.item)
    }

    /// The earliest deadline.
    pub fn peek(&self) -> Option<K> {
        self.entries.first().map(|entry| entry.when)
    }

    /// Takes out the first item if its deadline is at or before `now`.
    pub fn pop_due(&mut self, now: K) -> Option<(K, T)> {
        if self.peek()? <= now { self.pop() } else { None }
    }

    /// Takes out the first item, due or not.
    pub fn pop(&mut self) -> Option<(K, T)> {
        self.take(0).map(|entry| (entry.when, entry.item))
    }

    /// Every waiting item with its deadline, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.entries.iter().map(|entry| (&entry.when, &entry.item))
    }

    /// Empties the heap, giving the items in no particular order; their slots are `NONE` when they come out.
    /// What the caller does not take is dropped with the iterator.
    pub fn drain(&mut self) -> Drain<'_, K, T> {
        Drain { heap: self }
    }

    /// Drops every item.
    pub fn clear(&mut self) {
        self.drain().for_each(drop);
    }

    fn take(&mut self, index: usize) -> Option<Entry<K, T>> {
        if index >= self.entries.len() {
            return None;
        }
        let removed = self.entries.swap_remove(index);
        if index < self.entries.len() {
            // The last entry fills the gap; relative to its new neighbours it may be too late or too early.
            let parent = index.wrapping_sub(1) / ARITY;
            if index > 0 && self.entries[index].before(&self.entries[parent]) {
                self.sift_up(index);
            } else {
                self.sift_down(index);
            }
        }
        removed.item.set_slot(Slot::NONE);
        Some(removed)
    }

    fn sift_up(&mut self, index: usize) {
        let mut hole = Hole::open(&mut self.entries, index);
        while hole.index() > 0 {
            let parent = (hole.index() - 1) / ARITY;
            if !hole.held().before(hole.get(parent)) {
                break;
            }
            hole.fill_from(parent);
        }
    }

    fn sift_down(&mut self, index: usize) {
        let len = self.entries.len();
        let mut hole = Hole::open(&mut self.entries, index);
        loop {
            let first = hole.index() * ARITY + 1;
            if first >= len {
                break;
            }
            let mut least = first;
            for child in first + 1..(first + ARITY).min(len) {
                if hole.get(child).before(hole.get(least)) {
                    least = child;
                }
            }
            if !hole.get(least).before(hole.held()) {
                break;
            }
            hole.fill_from(least);
        }
    }
}

impl<K: Copy + PartialOrd, T: Slotted> Default for TimerHeap<K, T> {
    fn default() -> Self {
        TimerHeap::new()
    }
}

impl<K: Copy + PartialOrd, T: Slotted> fmt::Debug for TimerHeap<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerHeap").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The iterator of [`TimerHeap::drain`].
pub struct Drain<'a, K: Copy + PartialOrd, T: Slotted> {
    heap: &'a mut TimerHeap<K, T>,
}

impl<K: Copy + PartialOrd, T: Slotted> Iterator for Drain<'_, K, T> {
    type Item = (K, T);

    fn next(&mut self) -> Option<(K, T)> {
        // Popping from the back keeps the rest a valid heap at every step.
        let entry = self.heap.entries.pop()?;
        entry.item.set_slot(Slot::NONE);
        Some((entry.when, entry.item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.heap.len(), Some(self.heap.len()))
    }
}

impl<K: Copy + PartialOrd, T: Slotted> ExactSizeIterator for Drain<'_, K, T> {}
impl<K: Copy + PartialOrd, T: Slotted> FusedIterator for Drain<'_, K, T> {}

impl<K: Copy + PartialOrd, T: Slotted> Drop for Drain<'_, K, T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<K: Copy + PartialOrd, T: Slotted> fmt::Debug for Drain<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").field("left", &self.heap.len()).finish_non_exhaustive()
    }
}
