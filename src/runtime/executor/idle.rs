//! Who sleeps and who searches. The protocol is told in README.md beside this file.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::super::shim::{AtomicUsize, Mutex, fence};
use super::super::unpoisoned;

/// One worker in the upper half of the word.
const UNPARKED: usize = 1 << 16;
const SEARCHING: usize = 0xFFFF;

pub(super) struct Idle {
    /// `unparked << 16 | searching`. A searching worker is also unparked. Changed together with `sleepers`, under
    /// its lock, except for the searching half. It guards no memory, so its accesses are relaxed: what has to be in order
    /// with the queues is ordered by fences.
    word: AtomicUsize,
    /// Parked workers, the last to park at the end: its caches are warmest.
    sleepers: Mutex<Vec<usize>>,
    workers: usize,
}

impl Idle {
    /// All workers start unparked.
    pub(super) fn new(workers: usize) -> Idle {
        Idle {
            word: AtomicUsize::new(workers * UNPARKED),
            sleepers: Mutex::new(Vec::with_capacity(workers)),
            workers,
        }
    }

    /// Whether someone may have to be woken, without the fence that makes the answer reliable: a "yes" is worth
    /// acting on, a "no" must be asked again by [`Idle::notify`].
    pub(super) fn maybe_asleep(&self) -> bool {
        self.wants_wake(self.word.load(Relaxed))
    }

    /// After a task was posted: picks a worker to be unparked, if all others sleep and nobody searches. It counts
    /// as unparked and searching from now on.
    pub(super) fn notify(&self) -> Option<usize> {
        // Ordering: pairs with the fence in `park`. Either the load below sees the sleeper, or the sleeper's rescan
        // sees the task that was posted before this fence.
        fence(SeqCst);
        if !self.wants_wake(self.word.load(Relaxed)) {
            return None;
        }
        let mut sleepers = unpoisoned(self.sleepers.lock());
        if !self.wants_wake(self.word.load(Relaxed)) {
            return None;
        }
        let worker = sleepers.pop()?;
        self.word.fetch_add(UNPARKED + 1, Relaxed);
        Some(worker)
    }

    fn wants_wake(&self, word: usize) -> bool {
        word & SEARCHING == 0 && word / UNPARKED < self.workers
    }

    /// A worker out of work asks to search the others' queues: at most half of them do at a time.
    pub(super) fn start_search(&self) -> bool {
        let word = self.word.load(Relaxed);
        if 2 * (word & SEARCHING) >= self.workers {
            return false;
        }
        self.word.fetch_add(1, Relaxed);
        true
    }

    /// A searching worker found something. True if it was the last: if there is more to find, another should search in
    /// its stead.
    #[must_use]
    pub(super) fn end_search(&self) -> bool {
        let last = self.word.fetch_sub(1, Relaxed) & SEARCHING == 1;
        // Ordering: pairs with the fence in `notify`. A poster that saw us search posted before our caller looks.
        fence(SeqCst);
        last
    }

    /// A worker is going to sleep. After this it looks at all queues once more before it does.
    pub(super) fn park(&self, worker: usize, searching: bool) {
        let mut sleepers = unpoisoned(self.sleepers.lock());
        sleepers.push(worker);
        self.word.fetch_sub(UNPARKED + usize::from(searching), Relaxed);
        drop(sleepers);
        // Ordering: pairs with the fence in `notify`.
        fence(SeqCst);
    }

    /// A worker woke up. True if `notify` chose it, which then counts it as searching; else it takes itself off the
    /// list.
    #[must_use]
    pub(super) fn unpark(&self, worker: usize) -> bool {
        let mut sleepers = unpoisoned(self.sleepers.lock());
        let Some(place) = sleepers.iter().position(|sleeper| *sleeper == worker) else { return true };
        sleepers.remove(place);
        self.word.fetch_add(UNPARKED, Relaxed);
        false
    }

    /// Whether no worker searches. Reliable after `park`: a search that ends later sees us asleep.
    pub(super) fn nobody_searches(&self) -> bool {
        self.word.load(Relaxed) & SEARCHING == 0
    }
}
