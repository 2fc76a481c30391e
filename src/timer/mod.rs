//! The timer heap that both halves of wakeloop use: the event loop for its handles, the runtime for its sleeps.
//!
//! It is an 8-ary min-heap of `(when, sequence, number)`, and a table of the items by number. Three properties
//! make it fit for timers:
//!
//! - **Removal is immediate.** An item gets its number once, when it is inserted ([`Slotted::set_slot`]), and
//!   the heap keeps the position of every number. So a cancelled timer is removed at once, in O(log n). The
//!   heap never holds dead entries that a later sweep would have to find.
//! - **Equal deadlines fire in the order they were inserted.** The sequence number breaks ties.
//! - **Items are not touched.** A sift moves keys and writes positions, both in dense arrays. Items are
//!   scattered over the memory of their owners, and that memory is cold when thousands of timers fall due after
//!   a long sleep. Writing to each item at every move made such a burst twice as late.
//!
//! Eight children instead of two make the heap a third as high, and the keys that one step compares are
//! adjacent, in two or three cache lines. Seven of eight keys are leaves: removing a leaf, as a cancel mostly
//! does, needs no sift down.
//!
//! It has no policy: no clock, no threads, no lock. The owner decides what `K` means (seconds as `f64`,
//! `Instant`, …) and serialises access. Deadlines must be comparable with each other: a NaN among `f64`
//! deadlines leaves the order unspecified.

use std::cmp::Ordering;
use std::collections::TryReserveError;
use std::fmt;

const ARITY: usize = 8;

/// The number of an item in a [`TimerHeap`], or [`Slot::NONE`] if it is in no heap.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(u32);

impl Slot {
    /// The item is in no heap.
    pub const NONE: Slot = Slot(u32::MAX);

    /// Whether the item is in no heap.
    pub const fn is_none(self) -> bool {
        self.0 == u32::MAX
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

/// An item that stores its number in the heap, so that it can be removed later.
///
/// The heap calls `set_slot` with the number when the item is inserted, and with [`Slot::NONE`] when it is
/// removed. The implementation stores the value (in a `Cell` or a relaxed atomic) and must not touch the heap.
pub trait Slotted {
    /// Stores `slot`.
    fn set_slot(&self, slot: Slot);
}

/// One key of the heap. It takes 16 bytes if the deadline takes 8, so that a cache line holds four.
#[derive(Clone, Copy)]
struct Entry<K> {
    when: K,
    seq: u32,
    number: u32,
}

impl<K: Copy + PartialOrd> Entry<K> {
    /// Branch-free: the processor cannot predict which of two deadlines is earlier.
    #[inline(always)]
    fn before(&self, other: &Self) -> bool {
        (self.when < other.when) | ((self.when == other.when) & (self.seq < other.seq))
    }
}

/// A min-heap of deadlines. See the module documentation.
pub struct TimerHeap<K: Copy + PartialOrd, T: Slotted> {
    entries: Vec<Entry<K>>,
    /// Indexed by number: the position in `entries`. Meaningful while the number has an item.
    places: Vec<u32>,
    /// Indexed by number.
    items: Vec<Option<T>>,
    /// Numbers without an item.
    free: Vec<u32>,
    next_seq: u32,
}

impl<K: Copy + PartialOrd, T: Slotted> TimerHeap<K, T> {
    /// Creates an empty heap, without allocating.
    pub const fn new() -> Self {
        TimerHeap {
            entries: Vec::new(),
            places: Vec::new(),
            items: Vec::new(),
            free: Vec::new(),
            next_seq: 0,
        }
    }

    /// How many items are waiting.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no item is waiting.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes room for one more item, so that neither its insertion nor a removal allocates.
    ///
    /// # Errors
    /// If there is no memory for it.
    #[inline]
    pub fn try_reserve(&mut self) -> Result<(), TryReserveError> {
        if self.entries.len() < self.entries.capacity() { Ok(()) } else { self.grow() }
    }

    /// The tables of numbers grow first: if the entries have room, the tables have.
    #[cold]
    fn grow(&mut self) -> Result<(), TryReserveError> {
        let capacity = (2 * self.entries.len()).max(4);
        let beyond = |length: usize| capacity.saturating_sub(length);
        self.places.try_reserve(beyond(self.places.len()))?;
        self.items.try_reserve(beyond(self.items.len()))?;
        self.free.try_reserve(beyond(self.free.len()))?;
        self.entries.try_reserve_exact(capacity - self.entries.len())
    }

    /// Adds `item` with the deadline `when`, after every item with an equal deadline.
    ///
    /// # Panics
    /// If the heap already holds 2^32 - 1 items.
    pub fn insert(&mut self, when: K, item: T) {
        let index = self.entries.len();
        assert!(index < Slot::NONE.0 as usize, "too many timers");
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.items.push(None);
                self.places.push(0);
                (self.items.len() - 1) as u32
            }
        };
        item.set_slot(Slot(number));
        self.items[number as usize] = Some(item);
        if self.next_seq == u32::MAX {
            self.renumber();
        }
        let entry = Entry { when, seq: self.next_seq, number };
        self.next_seq += 1;
        self.entries.push(entry);
        self.sift_up(index, entry);
    }

    /// Removes the item at `slot`, and sets its slot to [`Slot::NONE`].
    ///
    /// Returns `None` if `slot` is `NONE` or not in use. A slot is only meaningful together with the item that
    /// holds it: a stale slot removes whichever item has its number now.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let item = self.release(slot.0)?;
        let index = self.places[slot.0 as usize] as usize;
        self.close(index);
        Some(item)
    }

    /// The earliest deadline.
    #[inline]
    pub fn peek(&self) -> Option<K> {
        self.entries.first().map(|entry| entry.when)
    }

    /// The earliest deadline with its item.
    pub fn peek_item(&self) -> Option<(K, &T)> {
        let Entry { when, number, .. } = *self.entries.first()?;
        Some((when, self.items[number as usize].as_ref()?))
    }

    /// Removes and returns the first item if its deadline is at or before `now`.
    pub fn pop_due(&mut self, now: K) -> Option<(K, T)> {
        if self.peek()? <= now { self.pop() } else { None }
    }

    /// Removes and returns the first item, due or not.
    pub fn pop(&mut self) -> Option<(K, T)> {
        let Entry { when, number, .. } = *self.entries.first()?;
        let item = self.release(number)?;
        self.close(0);
        Some((when, item))
    }

    /// Iterates over every waiting item with its deadline, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((&entry.when, self.items[entry.number as usize].as_ref()?)))
    }

    /// Returns every waiting item, in the order in which they would fire.
    pub fn in_order(&self) -> Vec<&T> {
        let mut entries: Vec<&Entry<K>> = self.entries.iter().collect();
        entries.sort_unstable_by(|one, other| match (one.before(other), other.before(one)) {
            (true, _) => Ordering::Less,
            (_, true) => Ordering::Greater,
            _ => Ordering::Equal,
        });
        entries.into_iter().filter_map(|entry| self.items[entry.number as usize].as_ref()).collect()
    }

    /// Empties the heap. Returns the items with their deadlines, in no particular order. Their slots are `NONE`
    /// by then.
    pub fn drain(&mut self) -> Vec<(K, T)> {
        let entries = std::mem::take(&mut self.entries);
        entries.into_iter().filter_map(|entry| Some((entry.when, self.release(entry.number)?))).collect()
    }

    /// Removes the item from the table and frees its number. The caller removes the key.
    fn release(&mut self, number: u32) -> Option<T> {
        let item = self.items.get_mut(number as usize)?.take()?;
        self.free.push(number);
        item.set_slot(Slot::NONE);
        Some(item)
    }

    /// Renumbers the waiting items in order, when the sequence numbers are used up.
    #[cold]
    fn renumber(&mut self) {
        let mut order: Vec<u32> = (0..self.entries.len() as u32).collect();
        order.sort_unstable_by_key(|index| self.entries[*index as usize].seq);
        self.next_seq = 0;
        for index in order {
            self.entries[index as usize].seq = self.next_seq;
            self.next_seq += 1;
        }
    }

    /// Removes the key at `index`. The last key fills the gap.
    fn close(&mut self, index: usize) {
        let Some(last) = self.entries.pop() else { return };
        if index == self.entries.len() {
            return;
        }
        // The key that fills the gap may belong above or below its new position.
        let parent = index.wrapping_sub(1) / ARITY;
        if index > 0 && last.before(&self.entries[parent]) {
            self.sift_up(index, last);
        } else {
            self.sift_down(index, last);
        }
    }

    fn put(&mut self, index: usize, entry: Entry<K>) {
        self.entries[index] = entry;
        self.places[entry.number as usize] = index as u32;
    }

    /// Stores `entry` at the free position `index`, or moves it up from there.
    fn sift_up(&mut self, mut index: usize, entry: Entry<K>) {
        while index > 0 {
            let parent = (index - 1) / ARITY;
            if !entry.before(&self.entries[parent]) {
                break;
            }
            self.put(index, self.entries[parent]);
            index = parent;
        }
        self.put(index, entry);
    }

    /// Stores `entry` at the free position `index`, or moves it down from there.
    fn sift_down(&mut self, mut index: usize, entry: Entry<K>) {
        let len = self.entries.len();
        loop {
            let first = index * ARITY + 1;
            if first >= len {
                break;
            }
            let least = first + least(&self.entries[first..(first + ARITY).min(len)]);
            if !self.entries[least].before(&entry) {
                break;
            }
            self.put(index, self.entries[least]);
            index = least;
        }
        self.put(index, entry);
    }
}

/// Returns the index of the earliest of one to eight siblings.
#[inline(always)]
fn least<K: Copy + PartialOrd>(siblings: &[Entry<K>]) -> usize {
    if let [a, b, c, d, e, f, g, h] = siblings {
        // Four independent comparisons, then two, then one: each compiles to a conditional move.
        let first = usize::from(b.before(a));
        let second = 2 + usize::from(d.before(c));
        let third = 4 + usize::from(f.before(e));
        let fourth = 6 + usize::from(h.before(g));
        let left = if siblings[second].before(&siblings[first]) { second } else { first };
        let right = if siblings[fourth].before(&siblings[third]) { fourth } else { third };
        return if siblings[right].before(&siblings[left]) { right } else { left };
    }
    let mut least = 0;
    for sibling in 1..siblings.len() {
        if siblings[sibling].before(&siblings[least]) {
            least = sibling;
        }
    }
    least
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Item(u32);

    impl Slotted for Item {
        fn set_slot(&self, _: Slot) {}
    }

    #[test]
    fn equal_deadlines_keep_their_order_when_the_sequence_numbers_begin_anew() {
        let mut heap = TimerHeap::new();
        heap.next_seq = u32::MAX - 50;
        for n in 0..100 {
            heap.insert(n % 3, Item(n));
        }
        assert!(heap.next_seq < 200, "the numbers were not used up");
        let fired: Vec<_> = std::iter::from_fn(|| heap.pop()).map(|(when, item)| (when, item.0)).collect();
        let mut expected: Vec<_> = (0..100).map(|n| (n % 3, n)).collect();
        expected.sort_unstable();
        assert_eq!(fired, expected);
    }
}
