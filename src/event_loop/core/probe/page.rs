//! The shared page, on which a process publishes the counters of its loops. `python -m wakeloop top` reads it from
//! outside.
//!
//! The page has a header, which Python code writes, and a slot for each of [`SLOTS`] loops. A published loop has its
//! counters in its slot instead of the heap, so that publishing costs it nothing, and a reader sees its figures even
//! while it is blocked.
//!
//! - Slots are taken and released under a lock ([`Taking`]). Only the loop's thread writes the rest.
//! - This process never reads what others could have changed, except its own counters.
//! - The mapping stays until the process ends, so that references into it stay valid. In a forked child it becomes a
//!   private copy: the child does not write to its parent's page.

use std::cell::Cell;
use std::io;
use std::mem::offset_of;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

use super::metrics::{Counter, Counters, LoopFigures};
use crate::metrics::Layout;

/// How many loops the page has room for.
const SLOTS: usize = 16;
/// How many slow callbacks a slot remembers.
const RECORDS: usize = 32;
const HEADER: usize = 4096;
/// The size of the page in bytes.
const SIZE: usize = HEADER + SLOTS * size_of::<Slot>();
/// The sizes in bytes of the page and of a slot.
pub(crate) const SIZES: (usize, usize) = (SIZE, size_of::<Slot>());

/// The slots of the mapped page; null if this process has none.
static PAGE: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

const _: () = assert!(size_of::<Slot>() == 8192 && size_of::<Record>() == 128);
const _: () = assert!(offset_of!(Slot, counters).is_multiple_of(64));

/// Somebody takes or releases a slot. It is a flag and not a mutex, because a forked child has to reset it.
static TAKING: AtomicBool = AtomicBool::new(false);

/// The lock under which slots are taken and released, while no code of others runs.
struct Taking;

impl Taking {
    fn begin() -> Taking {
        // Ordering: Acquire, pairs with the Release store below.
        while TAKING.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        Taking
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        // Ordering: Release, pairs with the Acquire in `begin`.
        TAKING.store(false, Ordering::Release);
    }
}

/// What a loop publishes. All times are nanoseconds of the monotonic clock.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Slot {
    /// Odd while a loop has the slot; changes whenever one takes or releases it.
    generation: AtomicU64,
    /// When the loop began to wait in the poll; 0 while it does not.
    pub(crate) polling_since: Counter,
    /// When it last came back from the poll.
    pub(crate) busy_since: Counter,
    /// When the transports were last counted, and how long that took.
    pub(crate) counted_at: Counter,
    pub(crate) counting: Counter,
    /// How many records were written.
    recorded: Counter,
    name: Text<8>,
    /// So that the counters begin a cache line.
    unused: [Counter; 2],
    counters: Counters,
    /// A ring of slow callbacks.
    records: [Record; RECORDS],
}

/// A callback that took long.
#[derive(Debug)]
#[repr(C)]
struct Record {
    /// Odd while the record is written.
    version: AtomicU64,
    /// When it ended, and how long it took.
    at: Counter,
    nanos: Counter,
    name: Text<13>,
}

/// UTF-8, padded with zeros.
type Text<const WORDS: usize> = [Counter; WORDS];

/// Where everything in a slot is: names, positions in bytes and types. It stands on the page too, so that a reader
/// notices if it would look for something in another place.
pub(crate) fn layout() -> impl Iterator<Item = (&'static str, usize, &'static str)> {
    let front = [
        ("generation", offset_of!(Slot, generation), "Counter"),
        ("polling_since", offset_of!(Slot, polling_since), "Counter"),
        ("busy_since", offset_of!(Slot, busy_since), "Counter"),
        ("name", offset_of!(Slot, name), "Text"),
        ("records", offset_of!(Slot, records), "Record"),
    ];
    let counters =
        Counters::CELLS.iter().map(|&(name, at, kind)| (name, offset_of!(Slot, counters) + at, kind));
    front.into_iter().chain(counters)
}

/// The contents of a loop's slot, as a reader finds them. All times are nanoseconds.
#[derive(Debug)]
pub(crate) struct PublishedLoop {
    pub(crate) name: Vec<u8>,
    pub(crate) generation: u64,
    pub(crate) figures: LoopFigures,
    pub(crate) running: bool,
    /// How long the loop has not been back at the poll; 0 if it waits there.
    pub(crate) busy: u64,
    /// When each slow callback ended, how long it took, and its name.
    pub(crate) slow: Vec<(u64, u64, Vec<u8>)>,
}

/// Reads the slots of another process's page at `now`. No contents make this fail.
pub(crate) fn read(slots: &[u8], now: u64) -> Vec<PublishedLoop> {
    slots.chunks_exact(size_of::<Slot>()).filter_map(|bytes| copy_of(bytes).read(now)).collect()
}

fn copy_of(bytes: &[u8]) -> Box<Slot> {
    // SAFETY: a slot consists of atomics, for which zero is valid.
    let slot: Box<Slot> = unsafe { Box::new_zeroed().assume_init() };
    for (word, bytes) in words(&slot).iter().zip(bytes.as_chunks().0) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    slot
}

impl Slot {
    fn read(&self, now: u64) -> Option<PublishedLoop> {
        let generation = self.generation.load(Ordering::Relaxed);
        if generation.is_multiple_of(2) {
            return None;
        }
        let (polling_since, started) = (self.polling_since.get(), self.counters.started.get());
        let waiting = if polling_since == 0 { 0 } else { now.saturating_sub(polling_since) };
        let is_busy = started != 0 && polling_since == 0;
        Some(PublishedLoop {
            name: read_text(&self.name),
            generation,
            figures: LoopFigures::at(now, waiting, &self.counters),
            running: started != 0,
            busy: if is_busy { now.saturating_sub(self.busy_since.get().max(started)) } else { 0 },
            slow: self.records.iter().filter_map(Record::read).collect(),
        })
    }

    /// The loop begins to wait in the poll at `now`.
    pub(crate) fn begin_poll(&self, now: u64) {
        self.polling_since.set(now);
    }

    pub(crate) fn end_poll(&self, now: u64) {
        self.busy_since.set(now);
        self.polling_since.set(0);
    }

    /// Writes a callback into the ring.
    pub(crate) fn record(&self, at: u64, nanos: u64, name: &[u8]) {
        let number = self.recorded.get();
        let record = &self.records[number as usize % RECORDS];
        let version = record.version.load(Ordering::Relaxed);
        record.version.store(version | 1, Ordering::Relaxed);
        // Ordering: a reader that sees what follows also sees the odd version when it loads the version again.
        fence(Ordering::Release);
        record.at.set(at);
        record.nanos.set(nanos);
        write_text(&record.name, name);
        // Ordering: Release, so that a reader that loads this version sees the whole record.
        record.version.store((version | 1).wrapping_add(1), Ordering::Release);
        self.recorded.set(number.wrapping_add(1));
    }

    /// Takes the slot for a loop, if it is free.
    fn take(&self, name: &[u8], counters: &Counters) -> bool {
        let generation = self.generation.load(Ordering::Relaxed);
        if !generation.is_multiple_of(2) {
            return false;
        }
        words(self)[1..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        write_text(&self.name, name);
        copy(counters, &self.counters);
        // Ordering: Release, so that a reader that loads the odd number sees the new contents.
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
        true
    }

    fn release(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        // Ordering: Release, as in `take`.
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
    }
}

impl Record {
    /// None if it was never written, or was being written.
    fn read(&self) -> Option<(u64, u64, Vec<u8>)> {
        let version = self.version.load(Ordering::Relaxed);
        (version != 0 && version.is_multiple_of(2))
            .then(|| (self.at.get(), self.nanos.get(), read_text(&self.name)))
    }
}

/// The counters of a loop, on the heap or in a slot of the page.
#[derive(Debug)]
pub(crate) struct LoopCounters {
    /// Where the counters are while the loop is not published.
    own: Box<Counters>,
    current: Cell<NonNull<Counters>>,
    slot: Cell<Option<&'static Slot>>,
}

impl Default for LoopCounters {
    fn default() -> LoopCounters {
        let own: Box<Counters> = Box::default();
        LoopCounters { current: Cell::new(NonNull::from(&*own)), own, slot: Cell::new(None) }
    }
}

impl Deref for LoopCounters {
    type Target = Counters;

    #[inline(always)]
    fn deref(&self) -> &Counters {
        // SAFETY: `own`, which lives as long as this object, or a part of the page, which is never unmapped.
        unsafe { self.current.get().as_ref() }
    }
}

impl LoopCounters {
    /// The slot of a published loop.
    #[inline(always)]
    pub(crate) fn slot(&self) -> Option<&'static Slot> {
        self.slot.get()
    }

    /// Moves the counters to the page, under this name. Returns false if there is no page, or no free slot; true if they
    /// are there already. The caller is in a section of the loop, so no other thread counts meanwhile.
    pub(crate) fn publish(&self, name: &[u8]) -> bool {
        let slots = slots();
        if self.slot.get().is_some_and(|slot| slots.as_ptr_range().contains(&ptr::from_ref(slot))) {
            return true;
        }
        // The slot of a loop that was made before a fork.
        self.unpublish();
        let taking = Taking::begin();
        let Some(slot) = slots.iter().find(|slot| slot.take(name, &self.own)) else { return false };
        drop(taking);
        self.current.set(NonNull::from(&slot.counters));
        self.slot.set(Some(slot));
        true
    }

    /// Moves the counters back to the heap. The caller is in a section of the loop, or drops it.
    pub(crate) fn unpublish(&self) {
        if let Some(slot) = self.slot.take() {
            copy(&slot.counters, &self.own);
            self.current.set(NonNull::from(&*self.own));
            let _taking = Taking::begin();
            slot.release();
        }
    }
}

impl Drop for LoopCounters {
    fn drop(&mut self) {
        self.unpublish();
    }
}

/// Maps the page, a file of [`SIZE`] bytes that nobody can shorten. Called once, by the Python half, under a lock.
pub(crate) fn map(fd: RawFd) -> io::Result<()> {
    let page = map_at(ptr::null_mut(), libc::MAP_SHARED, fd)?;
    // Ordering: Release, pairs with the Acquire load in `slots`.
    PAGE.store(page.wrapping_byte_add(HEADER).cast(), Ordering::Release);
    Ok(())
}

/// Called in a forked child: replaces the page by a private copy, and forgets it. Loops of the parent that the child
/// has copies of keep their slots in it.
pub(crate) fn forked() {
    TAKING.store(false, Ordering::Relaxed);
    let slots = slots();
    if slots.is_empty() {
        return;
    }
    let kept: Vec<(usize, u64)> = slots
        .iter()
        .filter(|slot| !slot.generation.load(Ordering::Relaxed).is_multiple_of(2))
        .flat_map(words)
        .map(|word| (word.as_ptr().addr(), word.load(Ordering::Relaxed)))
        .collect();
    let page = slots.as_ptr().cast_mut().wrapping_byte_sub(HEADER).cast();
    if map_at(page, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED, -1).is_ok() {
        for (address, value) in kept {
            let offset = address - slots.as_ptr().addr();
            words_of_page(slots)[offset / 8].store(value, Ordering::Relaxed);
        }
    }
    PAGE.store(ptr::null_mut(), Ordering::Relaxed);
}

fn map_at(address: *mut libc::c_void, flags: i32, fd: RawFd) -> io::Result<*mut libc::c_void> {
    // SAFETY: a new mapping, or one over the page, which is not used as anything but atomics.
    let page = unsafe { libc::mmap(address, SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    if page == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(page) }
}

fn slots() -> &'static [Slot] {
    // Ordering: Acquire, pairs with the Release store in `map`.
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return &[];
    }
    // SAFETY: `map` has mapped so many slots, and they are never unmapped. They consist of atomics, for which all bytes
    // are valid.
    unsafe { slice::from_raw_parts(page, SLOTS) }
}

fn words(slot: &Slot) -> &[AtomicU64] {
    words_of_page(slice::from_ref(slot))
}

fn words_of_page(slots: &[Slot]) -> &[AtomicU64] {
    // SAFETY: a slot consists of atomics of this size, in `repr(C)`, and its size is a multiple of it. The padding at
    // the end is not used, and is initialised in a mapping.
    unsafe { slice::from_raw_parts(slots.as_ptr().cast(), size_of_val(slots) / size_of::<AtomicU64>()) }
}

fn copy(from: &Counters, to: &Counters) {
    // SAFETY: `Counters` consists of atomics of this size, in `repr(C)`, without padding.
    let words = |counters: &Counters| unsafe {
        slice::from_raw_parts(ptr::from_ref(counters).cast::<AtomicU64>(), size_of::<Counters>() / 8)
    };
    for (from, to) in words(from).iter().zip(words(to)) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Writes a text, as much as there is room for.
fn write_text(words: &[Counter], text: &[u8]) {
    let mut chunks = text.chunks(8);
    for word in words {
        let mut bytes = [0; 8];
        if let Some(chunk) = chunks.next() {
            bytes[..chunk.len()].copy_from_slice(chunk);
        }
        word.set(u64::from_ne_bytes(bytes));
    }
}

/// A text up to its end.
fn read_text(words: &[Counter]) -> Vec<u8> {
    words.iter().flat_map(|word| word.get().to_ne_bytes()).take_while(|byte| *byte != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> Box<Slot> {
        copy_of(&[])
    }

    #[test]
    fn a_slot_is_taken_once_and_has_the_counters() {
        let (slot, counters) = (zeroed(), Counters::default());
        counters.turns.add(7);
        counters.gil_wait.note(1 << 20);
        assert!(slot.take(b"MainThread", &counters));
        assert!(!slot.take(b"other", &counters));
        assert_eq!((slot.counters.turns.get(), slot.counters.slow_turns.get()), (7, 0));
        assert_eq!(slot.name[0].get().to_ne_bytes(), *b"MainThre");
        slot.release();
        assert!(slot.take(b"other", &counters));
        assert_eq!(slot.name[1].get(), 0);
    }

    #[test]
    fn records_are_written_in_a_ring_and_long_names_are_cut() {
        let (slot, name) = (zeroed(), [b'x'; 200]);
        for number in 0..RECORDS as u64 + 3 {
            slot.record(number, 5, &name);
        }
        assert_eq!((slot.recorded.get(), slot.records[2].at.get()), (RECORDS as u64 + 3, RECORDS as u64 + 2));
        assert_eq!(slot.records[2].version.load(Ordering::Relaxed), 4);
        assert_eq!(slot.records[2].name[12].get(), u64::from_ne_bytes([b'x'; 8]));
    }

    #[test]
    fn without_a_page_a_loop_keeps_its_counters() {
        let counters = LoopCounters::default();
        counters.turns.add(1);
        assert!(!counters.publish(b"x"));
        counters.unpublish();
        assert_eq!((counters.turns.get(), counters.slot().is_none()), (1, true));
    }
}
