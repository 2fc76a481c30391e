//! The registry of this process's loops: what any thread may read of a loop without the GIL.
//!
//! A loop has an entry from its creation to its end: its heartbeat, its counters, its name and its last slow turns.
//!
//! - Entries are never freed: the next loop takes one that no loop has. So a reference to an entry stays valid, and a
//!   loop that nobody looks at pays nothing for it.
//! - Entries are taken, named and released under a lock ([`Taking`]), while no code of others runs. Only threads in a
//!   section of the loop write the rest.
//! - A reader may find numbers that are a moment apart. The generation tells it whether they are those of one loop.
//! - A forked child begins with an empty registry. A loop of the parent's enters it when the child runs the loop.

use std::collections::HashSet;
use std::iter;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, null_mut};
use std::slice;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, fence};
use std::sync::{Arc, Weak};

use super::super::inbox::Inbox;
use super::heartbeat::{Beat, Heartbeat};
use super::labels::{self, Labels};
use super::metrics::{Counter, Counters, LoopFigures};
use crate::fork::Owner;

/// How many slow turns an entry remembers, and how many callbacks that are only long enough for [`watch`].
const RECORDS: usize = 16;

/// The first of all entries of this process, null without one.
static FIRST: AtomicPtr<Registered> = AtomicPtr::new(null_mut());
/// The number of the next loop.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// How many look at the loops, so that these keep callbacks that are long, but not slow.
static WATCHERS: AtomicUsize = AtomicUsize::new(0);
/// Somebody takes, names or releases an entry. It is a flag and not a mutex, because a forked child has to reset it.
static TAKING: AtomicBool = AtomicBool::new(false);

/// The lock under which entries are taken, named and released.
struct Taking;

impl Taking {
    fn begin() -> Taking {
        // Ordering: Acquire, pairs with the Release store below.
        while TAKING.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            std::thread::yield_now();
        }
        Taking
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        // Ordering: Release, pairs with the Acquire in `begin`.
        TAKING.store(false, Release);
    }
}

/// How many words the text about a busy wait has: a name, and a chain of awaits.
const CHAIN: usize = 96;

/// A loop that has waited for so long in the poll, in nanoseconds, is not busy. A short poll may be seen as a wait.
const WAIT: u64 = 100_000_000;

/// UTF-8, padded with zeros.
type Text<const WORDS: usize> = [Counter; WORDS];

/// The entry of a loop.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) heartbeat: Heartbeat,
    pub(crate) counters: Counters,
    /// Odd while a loop has the entry; changes whenever one takes or releases it.
    generation: AtomicU64,
    /// The position of the loop in the order in which loops were made.
    number: Counter,
    /// Empty until the loop is made as a whole, and again when it is closed.
    name: Text<8>,
    /// The processor time by label, while somebody asks for it.
    pub(crate) labels: Labels,
    /// Some of [`Asked`], which somebody wants of the loop.
    asked: AtomicU8,
    /// When they were last counted.
    counted_at: Counter,
    slow: Ring,
    long: Ring,
    /// The last busy wait.
    busy_wait: Record<CHAIN>,
    /// When the current one was found; 0 without one.
    busy_since: Counter,
    /// A weak reference to the loop's inbox, or null. Read under the lock. It is none of the references by which the
    /// loop tells how many operations are awaited.
    inbox: AtomicPtr<Inbox>,
    owner: Owner,
    next: AtomicPtr<Registered>,
}

/// A wish of a thread without the GIL, which a loop fulfils before its next poll.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    /// The gauges shall be counted.
    Gauges = 1,
    /// The processor time shall be split by label. The loop keeps this until nobody asks any more.
    Labels = 2,
    /// A recording was started or stopped.
    Recording = 4,
}

/// The last callbacks that took long.
#[derive(Debug)]
struct Ring {
    written: Counter,
    records: [Record; RECORDS],
}

/// A callback that took long.
#[derive(Debug)]
struct Record<const WORDS: usize = 21> {
    /// Odd while the record is written.
    version: AtomicU64,
    at: Counter,
    nanos: Counter,
    name: Text<WORDS>,
}

/// A callback that took long, as a reader finds it. The times are nanoseconds of the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlowCallback {
    /// When it ended, and how long it took.
    pub(crate) at: u64,
    pub(crate) nanos: u64,
    pub(crate) name: String,
}

/// A loop, as a reader finds it.
#[derive(Debug)]
pub(crate) struct LoopView {
    pub(crate) name: String,
    /// Two loops that have the same entry have different ones.
    pub(crate) generation: u64,
    pub(crate) number: u64,
    pub(crate) entry: &'static Registered,
    pub(crate) running: bool,
    pub(crate) beat: Beat,
    pub(crate) figures: LoopFigures,
    /// When the gauges were last counted; 0 if they were not.
    pub(crate) counted_at: u64,
}

/// All entries of this process, also those that no loop has.
fn all() -> impl Iterator<Item = &'static Registered> {
    // Ordering: Acquire pairs with the Release in `enter`.
    // SAFETY: null, or an entry, which `add` leaks.
    let get = |pointer: &AtomicPtr<Registered>| unsafe { pointer.load(Acquire).as_ref() };
    iter::successors(get(&FIRST), move |entry| get(&entry.next))
}

/// The heartbeats of this process's loops.
pub(crate) fn heartbeats() -> impl Iterator<Item = &'static Heartbeat> {
    all().map(|entry| &entry.heartbeat)
}

/// The open loops of this process at `now`, in the order in which they were made.
pub(crate) fn loops(now: u64) -> Vec<LoopView> {
    let mut loops: Vec<_> = all().filter_map(|entry| entry.view(now)).collect();
    loops.sort_by_key(|view| view.number);
    loops
}

/// Somebody looks at the loops. While there is one, loops keep callbacks that are long, but not slow.
#[derive(Debug)]
pub(crate) struct Watcher(Owner);

impl Watcher {
    pub(crate) fn new() -> Watcher {
        WATCHERS.fetch_add(1, Relaxed);
        Watcher(Owner::this_process())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A forked child begins without one.
        if self.0.is_this_process() {
            WATCHERS.fetch_sub(1, Relaxed);
        }
    }
}

pub(crate) fn is_watched() -> bool {
    WATCHERS.load(Relaxed) != 0
}

/// Called in a forked child: the loops of the parent's other threads do not run here.
pub(crate) fn forked() {
    TAKING.store(false, Relaxed);
    WATCHERS.store(0, Relaxed);
    labels::forked();
    FIRST.store(null_mut(), Relaxed);
}

/// The entry of a loop, from its creation to its end.
#[derive(Debug)]
pub(crate) struct Registration(&'static Registered);

impl Registration {
    /// Takes an entry for a loop that has no name yet.
    pub(crate) fn new(inbox: &Arc<Inbox>) -> Registration {
        let _taking = Taking::begin();
        let entry = all().find(|entry| !entry.is_taken()).unwrap_or_else(add);
        entry.clear();
        entry.number.set(NEXT.fetch_add(1, Relaxed));
        entry.inbox.store(Arc::downgrade(inbox).into_raw().cast_mut(), Relaxed);
        // Ordering: Release, so that a reader that loads the odd number sees the new contents.
        entry.generation.store(entry.generation.load(Relaxed).wrapping_add(1), Release);
        Registration(entry)
    }

    pub(crate) fn entry(&self) -> &'static Registered {
        self.0
    }
}

impl Deref for Registration {
    type Target = Registered;

    #[inline(always)]
    fn deref(&self) -> &Registered {
        self.0
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let taking = Taking::begin();
        let inbox = self.inbox.swap(null_mut(), Relaxed);
        // Ordering: Release, as in `new`.
        self.generation.store(self.generation.load(Relaxed).wrapping_add(1), Release);
        drop(taking);
        if !inbox.is_null() {
            // SAFETY: the reference that `new` has stored, which was taken out under the lock.
            drop(unsafe { Weak::from_raw(inbox) });
        }
    }
}

/// Makes an entry, which stays. The caller has the lock.
fn add() -> &'static Registered {
    let entry: &'static Registered = Box::leak(Box::new(Registered::new()));
    entry.enter();
    entry
}

impl Registered {
    fn new() -> Registered {
        Registered {
            heartbeat: Heartbeat::new(),
            counters: Counters::default(),
            generation: AtomicU64::new(0),
            number: Counter::default(),
            name: Default::default(),
            labels: Labels::default(),
            asked: AtomicU8::new(0),
            counted_at: Counter::default(),
            slow: Ring::new(),
            long: Ring::new(),
            busy_wait: Record::new(),
            busy_since: Counter::default(),
            inbox: AtomicPtr::new(null_mut()),
            owner: Owner::this_process(),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// Enters the list. The caller has the lock.
    fn enter(&'static self) {
        self.next.store(FIRST.load(Relaxed), Relaxed);
        // Ordering: Release pairs with the Acquire in `all`.
        FIRST.store(ptr::from_ref(self).cast_mut(), Release);
    }

    fn is_taken(&self) -> bool {
        // Ordering: Acquire pairs with the Release in `Registration`: a reader sees what the loop of this generation
        // wrote.
        !self.generation.load(Acquire).is_multiple_of(2)
    }

    fn clear(&self) {
        // Ordering: Release, pairs with the Acquire fence in `view`. Who reads what follows finds that the generation
        // of the loop before is over.
        fence(Release);
        words(&self.counters).iter().for_each(|word| word.store(0, Relaxed));
        write_text(&self.name, b"");
        self.labels.clear();
        self.asked.store(0, Relaxed);
        self.counted_at.set(0);
        self.slow.clear();
        self.long.clear();
        self.busy_wait.clear();
        self.busy_since.set(0);
    }

    /// Gives the loop a name that no other open loop of this process has: that of a thread, with a number behind it if
    /// necessary. What cannot be printed in it is replaced. Without a name, it is not shown any more.
    pub(crate) fn set_name(&self, thread: &str) {
        let _taking = Taking::begin();
        self.name_after(&thread.chars().map(printable).collect::<String>());
    }

    fn name_after(&self, thread: &str) {
        let (name, mut number) = (Text::<8>::default(), 1);
        write_text(&name, thread.as_bytes());
        if !thread.is_empty() {
            let others = all().filter(|other| other.is_taken() && !ptr::eq(*other, self));
            let taken: HashSet<String> = others.map(|other| read_text(&other.name)).collect();
            while taken.contains(&read_text(&name)) {
                number += 1;
                let end = format!("-{number}");
                let most = thread.len().min(size_of::<Text<8>>() - end.len());
                write_text(&name, &[&thread.as_bytes()[..most], end.as_bytes()].concat());
            }
        }
        for (word, new) in self.name.iter().zip(&name) {
            word.set(new.get());
        }
    }

    /// A run of the loop begins. In a forked child, this enters a loop of its parent's.
    pub(crate) fn adopt(&'static self) {
        if !self.owner.is_this_process() {
            let _taking = Taking::begin();
            self.owner.adopt();
            self.enter();
            self.name_after(&read_text(&self.name));
        }
    }

    // -- questions

    /// Does somebody want something of the loop?
    #[inline(always)]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Relaxed) != 0
    }

    pub(crate) fn is_asked_for(&self, what: Asked) -> bool {
        self.asked.load(Relaxed) & what as u8 != 0
    }

    /// The loop has done it.
    pub(crate) fn answered(&self, what: Asked) {
        self.asked.fetch_and(!(what as u8), Relaxed);
    }

    /// The loop shall go on with it.
    pub(crate) fn keep_asked(&self, what: Asked) {
        self.asked.fetch_or(what as u8, Relaxed);
    }

    /// The gauges were counted at `now`.
    pub(crate) fn counted(&self, now: u64) {
        self.counted_at.set(now);
        self.answered(Asked::Gauges);
    }

    /// Asks the loop for something before its next poll. A loop that waits is woken for that.
    pub(crate) fn ask(&self, what: Asked) {
        self.asked.fetch_or(what as u8, Relaxed);
        let taking = Taking::begin();
        let inbox = self.inbox.load(Relaxed);
        // SAFETY: null, or the entry's own reference, which is taken out under the lock, and stays the entry's.
        let own = (!inbox.is_null()).then(|| ManuallyDrop::new(unsafe { Weak::from_raw(inbox) }));
        let inbox = own.and_then(|own| own.upgrade());
        drop(taking);
        if let Some(inbox) = inbox {
            inbox.wake();
        }
    }

    // -- slow turns

    /// Keeps a callback that ended at `at`: a slow turn, or one that is only long.
    pub(crate) fn keep(&self, at: u64, nanos: u64, name: &[u8], slow: bool) {
        if slow { &self.slow } else { &self.long }.push(at, nanos, name);
    }

    /// The last slow turns, the latest first.
    pub(crate) fn slow_turns(&self) -> Vec<SlowCallback> {
        self.slow.read()
    }

    /// The last callbacks that were long or slow, the latest first.
    pub(crate) fn long_callbacks(&self) -> Vec<SlowCallback> {
        let mut found = [self.slow.read(), self.long.read()].concat();
        found.sort_by_key(|callback| std::cmp::Reverse(callback.at));
        found
    }

    // -- busy waits

    /// Keeps a busy wait that was found at `at`, after so many nanoseconds: a name, and a line for each await.
    pub(crate) fn keep_busy_wait(&self, at: u64, nanos: u64, text: &[u8]) {
        self.busy_wait.write(at, nanos, text);
        self.busy_since.set(at);
    }

    /// The loop waits busily no more.
    pub(crate) fn end_busy_wait(&self) {
        self.busy_since.set(0);
    }

    /// The last busy wait, and whether it goes on at `now`. A loop that has begun to wait does not end it.
    pub(crate) fn busy_wait(&self, now: u64) -> Option<(SlowCallback, bool)> {
        let found = self.busy_wait.read()?;
        let goes_on = self.busy_since.get() == found.at && self.heartbeat.beat().waited(now) < WAIT;
        Some((found, goes_on))
    }

    pub(crate) fn name(&self) -> String {
        read_text(&self.name)
    }

    /// What the loop does, and its figures at `now`. Any thread may ask.
    pub(crate) fn figures(&self, now: u64) -> (Beat, LoopFigures) {
        loop {
            let beat = self.heartbeat.beat();
            let figures = LoopFigures::at(now, beat.waited(now), &self.counters);
            // Ordering: Acquire, pairs with the Release fence in `observe/probe.rs`. A loop that comes back from its
            // poll in between may have counted the wait.
            fence(Acquire);
            if beat == self.heartbeat.beat() || !matches!(beat, Beat::Idle(_)) {
                return (beat, figures);
            }
        }
    }

    /// A view of the loop at `now`; `None` if no open loop has the entry.
    fn view(&'static self, now: u64) -> Option<LoopView> {
        // Ordering: Acquire, as in `is_taken`.
        let generation = self.generation.load(Acquire);
        let name = read_text(&self.name);
        if generation.is_multiple_of(2) || name.is_empty() {
            return None;
        }
        let (beat, figures) = self.figures(now);
        let view = LoopView {
            name,
            generation,
            number: self.number.get(),
            entry: self,
            running: self.counters.started.get() != 0,
            beat,
            figures,
            counted_at: self.counted_at.get(),
        };
        // Ordering: Acquire, pairs with the Release fence in `clear`.
        fence(Acquire);
        (generation == self.generation.load(Relaxed)).then_some(view)
    }
}

impl Ring {
    fn new() -> Ring {
        Ring { written: Counter::default(), records: [const { Record::new() }; RECORDS] }
    }

    fn clear(&self) {
        self.written.set(0);
        self.records.iter().for_each(Record::clear);
    }

    fn push(&self, at: u64, nanos: u64, name: &[u8]) {
        let number = self.written.get();
        self.records[number as usize % RECORDS].write(at, nanos, name);
        self.written.set(number.wrapping_add(1));
    }

    /// The latest first.
    fn read(&self) -> Vec<SlowCallback> {
        let mut found: Vec<_> = self.records.iter().filter_map(Record::read).collect();
        found.sort_by_key(|callback| std::cmp::Reverse(callback.at));
        found
    }
}

impl<const WORDS: usize> Record<WORDS> {
    const fn new() -> Self {
        Record {
            version: AtomicU64::new(0),
            at: Counter::new(),
            nanos: Counter::new(),
            name: [const { Counter::new() }; WORDS],
        }
    }

    fn clear(&self) {
        self.version.store(0, Relaxed);
    }

    fn write(&self, at: u64, nanos: u64, name: &[u8]) {
        let version = self.version.load(Relaxed) | 1;
        self.version.store(version, Relaxed);
        // Ordering: pairs with the fence in `read`. A reader that sees what follows also sees the odd version.
        fence(Release);
        self.at.set(at);
        self.nanos.set(nanos);
        write_text(&self.name, name);
        // Ordering: Release pairs with the Acquire in `read`, so that a reader that loads this version sees the whole
        // record.
        self.version.store(version.wrapping_add(1), Release);
    }

    /// `None` if it was never written, or is being written.
    fn read(&self) -> Option<SlowCallback> {
        // Ordering: Acquire pairs with the Release in `write`.
        let version = self.version.load(Acquire);
        let found = SlowCallback { at: self.at.get(), nanos: self.nanos.get(), name: read_text(&self.name) };
        // Ordering: pairs with the fence in `write`.
        fence(Acquire);
        let whole = version != 0 && version.is_multiple_of(2) && version == self.version.load(Relaxed);
        whole.then_some(found)
    }
}

fn words(counters: &Counters) -> &[AtomicU64] {
    // SAFETY: `Counters` consists of atomics of this size, in `repr(C)`, without padding.
    unsafe {
        slice::from_raw_parts(ptr::from_ref(counters).cast(), size_of::<Counters>() / size_of::<AtomicU64>())
    }
}

/// The character itself, or a replacement for one that cannot be printed. A line break stays.
pub(crate) fn printable(char: char) -> char {
    match char {
        '\n' | '\'' | '"' | '\\' => char,
        _ if char.escape_debug().len() == 1 => char,
        _ => char::REPLACEMENT_CHARACTER,
    }
}

/// Writes a text, as much as there is room for. A NUL in it would be its end.
fn write_text(words: &[Counter], text: &[u8]) {
    let mut chunks = text.chunks(8);
    for word in words {
        let mut bytes = [0; 8];
        if let Some(chunk) = chunks.next() {
            bytes[..chunk.len()].copy_from_slice(chunk);
            bytes[..chunk.len()].iter_mut().filter(|byte| **byte == 0).for_each(|nul| *nul = b'?');
        }
        word.set(u64::from_ne_bytes(bytes));
    }
}

/// A text up to its end. A character that was cut is left out.
fn read_text(words: &[Counter]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.get().to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    bytes.utf8_chunks().map(|chunk| chunk.valid()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_in_a_ring_and_long_names_are_cut() {
        let ring = Ring::new();
        for number in 0..RECORDS as u64 + 3 {
            ring.push(number, 5, "é".repeat(100).as_bytes());
        }
        let found = ring.read();
        assert_eq!((found.len(), found[0].at, found[RECORDS - 1].at), (RECORDS, RECORDS as u64 + 2, 3));
        assert_eq!(found[0].name, "é".repeat(84));
        ring.clear();
        assert_eq!(ring.read(), []);
    }

    #[test]
    fn what_cannot_be_printed_is_replaced() {
        let shown: String = "a\"b\\c\nd\re\u{1b}\u{2028}\0é'".chars().map(printable).collect();
        assert_eq!(shown, "a\"b\\c\nd\u{fffd}e\u{fffd}\u{fffd}\u{fffd}é'");
    }

    #[test]
    fn a_record_that_is_being_written_is_not_read() {
        let record = Record::<21>::new();
        record.write(1, 2, b"whole");
        assert_eq!(record.read().map(|found| found.name), Some("whole".to_owned()));
        record.write(1, 2, b"\0NUL\0 is no end");
        assert_eq!(record.read().map(|found| found.name), Some("?NUL? is no end".to_owned()));
        record.version.fetch_add(1, Relaxed);
        assert_eq!(record.read(), None);
    }
}
