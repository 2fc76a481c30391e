//! A gap in the heap's array while one entry is on its way to a new place.
//!
//! Shifting through a hole moves each passed entry once, where swapping would move it twice. The held entry is
//! put back when the hole drops, also during unwinding, so the array is whole again whatever a `set_slot` does.

use std::mem::ManuallyDrop;
use std::ptr;

use super::{Entry, Slot, Slotted};

/// `entries[index]` is logically empty while this lives; its value is `held`.
pub(super) struct Hole<'a, K, T: Slotted> {
    entries: &'a mut [Entry<K, T>],
    held: ManuallyDrop<Entry<K, T>>,
    index: usize,
}

impl<'a, K, T: Slotted> Hole<'a, K, T> {
    /// Lifts `entries[index]` out. Panics if `index` is out of bounds.
    pub(super) fn open(entries: &'a mut [Entry<K, T>], index: usize) -> Self {
        // SAFETY: the reference is valid for reads. The value now exists twice; the copy in the array is never
        // used as a value again before `fill_from` or `drop` overwrites it, and `held` is never dropped.
        let held = unsafe { ManuallyDrop::new(ptr::read(&entries[index])) };
        Hole { entries, held, index }
    }

    /// Where the hole is.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The entry that was lifted out.
    pub(super) fn held(&self) -> &Entry<K, T> {
        &self.held
    }

    /// Another entry; the hole itself has none. Panics if out of bounds.
    pub(super) fn get(&self, index: usize) -> &Entry<K, T> {
        assert_ne!(index, self.index);
        &self.entries[index]
    }

    /// Moves the entry at `from` into the hole, so that `from` becomes the hole.
    pub(super) fn fill_from(&mut self, from: usize) {
        assert!(from != self.index && from < self.entries.len());
        let to = self.index;
        let base = self.entries.as_mut_ptr();
        // SAFETY: both indices are in bounds (`self.index` was checked when it was set) and distinct. The value
        // at `to` is the hole, so nothing is overwritten that is still owned; afterwards `from` is the hole.
        unsafe { ptr::copy_nonoverlapping(base.add(from), base.add(to), 1) };
        self.index = from;
        self.entries[to].item.set_slot(Slot::from_index(to));
    }
}

impl<K, T: Slotted> Drop for Hole<'_, K, T> {
    fn drop(&mut self) {
        let place: *mut Entry<K, T> = &mut self.entries[self.index];
        // SAFETY: `place` is the hole, whose old bits are not owned by anyone; `held` is moved into it exactly
        // once, here, and is not dropped on its own.
        unsafe { ptr::copy_nonoverlapping(&*self.held, place, 1) };
        self.held.item.set_slot(Slot::from_index(self.index));
    }
}
