//! The last events of one writer. A full ring overwrites the oldest.
//!
//! **Reading beside the writer.** `written` counts the events, and is stored before the next one is written. A reader
//! copies the slots, and then loads the count again: if a slot already had the content of a later event, the count
//! shows that this event was begun. So the reader drops every event that may have been overwritten meanwhile. The slot
//! that comes next may be half written at any time, so a ring holds one event less than it has slots.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use super::event::Event;

/// The fewest slots of a ring.
const FEWEST: usize = 64;

/// A ring of events.
#[derive(Debug)]
pub(crate) struct Ring {
    /// A power of two of slots: the ticks and the word of an event.
    slots: Box<[[AtomicU64; 2]]>,
    /// How many events were written.
    written: AtomicU64,
}

/// What a ring held.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// In the order in which they were written.
    pub(crate) events: Vec<Event>,
    /// How many events were overwritten before that.
    pub(crate) dropped: u64,
}

impl Ring {
    /// A ring of at most so many bytes, but of 64 slots at least. `None` if there is not so much memory.
    pub(crate) fn new(bytes: usize) -> Option<Ring> {
        let most = (bytes / size_of::<Event>()).max(FEWEST);
        let count = 1 << most.ilog2();
        let mut slots = Vec::new();
        slots.try_reserve_exact(count).ok()?;
        slots.resize_with(count, || [const { AtomicU64::new(0) }; 2]);
        Some(Ring { slots: slots.into_boxed_slice(), written: AtomicU64::new(0) })
    }

    /// Writes an event. Only the one writer may call this.
    #[inline(always)]
    pub(crate) fn push(&self, event: Event) {
        let written = self.written.load(Relaxed);
        // Ordering: Release, pairs with the Acquire fence in `read`. Who finds this event in its slot also finds that
        // all earlier ones are counted.
        fence(Release);
        let slot = &self.slots[written as usize & (self.slots.len() - 1)];
        slot[0].store(event.ticks, Relaxed);
        slot[1].store(event.word, Relaxed);
        // Ordering: Release, pairs with the Acquire load in `read`: a counted event is in its slot.
        self.written.store(written + 1, Release);
    }

    /// How many events were written, and how many of them were overwritten.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let written = self.written.load(Relaxed);
        (written, self.overwritten(written))
    }

    /// How many of the first `written` events can no longer be read.
    fn overwritten(&self, written: u64) -> u64 {
        (written + 1).saturating_sub(self.slots.len() as u64)
    }

    /// Copies what the ring holds. Any thread may call this at any time.
    pub(crate) fn read(&self) -> Content {
        // Ordering: Acquire, pairs with the Release store in `push`.
        let written = self.written.load(Acquire);
        let first = self.overwritten(written);
        let mask = self.slots.len() as u64 - 1;
        let mut events: Vec<Event> = (first..written)
            .map(|index| {
                let [ticks, word] = &self.slots[(index & mask) as usize];
                Event { ticks: ticks.load(Relaxed), word: word.load(Relaxed) }
            })
            .collect();
        // Ordering: Acquire, pairs with the Release fence in `push`.
        fence(Acquire);
        let lost = self.overwritten(self.written.load(Relaxed)) - first;
        events.drain(..(lost as usize).min(events.len()));
        Content { events, dropped: first + lost }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::event::{Kind, Origin};
    use super::*;

    fn event(number: u64) -> Event {
        Event::new(number, Kind::Callback, Origin::default(), number)
    }

    #[test]
    fn a_ring_keeps_the_last_events_in_order_and_counts_the_others() {
        let ring = Ring::new(64 * 16).unwrap();
        for pushed in 1..=200u64 {
            ring.push(event(pushed));
            let content = ring.read();
            let kept = pushed.min(63);
            let expected: Vec<Event> = (pushed - kept + 1..=pushed).map(event).collect();
            assert_eq!(content.events, expected);
            assert_eq!(content.dropped, pushed - kept);
            assert_eq!(ring.counts(), (pushed, pushed - kept));
        }
    }

    #[test]
    fn the_size_is_at_most_what_was_asked_for_and_at_least_64_slots() {
        let slots = |bytes| Ring::new(bytes).unwrap().slots.len();
        assert_eq!([0, 1, 64 * 16, 65 * 16, 128 * 16 - 1, 1 << 20].map(slots), [64, 64, 64, 64, 64, 1 << 16]);
        assert!(Ring::new(usize::MAX / 2).is_none());
    }

    #[test]
    fn a_reader_beside_the_writer_gets_whole_events_without_a_gap() {
        let (ring, stop) = (Ring::new(256 * 16).unwrap(), AtomicBool::new(false));
        let reads = if cfg!(miri) { 5 } else { 2_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !stop.load(Relaxed) {
                    ring.push(event(number));
                    number += 1;
                }
            });
            for _ in 0..reads {
                let content = ring.read();
                for (index, found) in content.events.iter().enumerate() {
                    assert_eq!(*found, event(content.dropped + index as u64));
                }
            }
            stop.store(true, Relaxed);
        });
    }
}
