//! Which workers sleep, and which search. README.md beside this file describes the protocol.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::super::shim::{AtomicUsize, Mutex, fence};
use crate::poison::unpoisoned;

/// One unparked worker, in the upper half of the word.
const UNPARKED: usize = 1 << 16;
const SEARCHING: usize = 0xFFFF;

pub(super) struct Idle {
    /// `unparked << 16 | searching`. A searching worker is also unparked. The unparked half changes together
    /// with `sleepers`, under its lock. The word guards no memory, so its accesses are relaxed; fences order it
    /// with the queues.
    word: AtomicUsize,
    sleepers: Mutex<Sleepers>,
    workers: usize,
}

/// The workers that are not counted as unparked.
struct Sleepers {
    /// The last to park is at the end, because its caches are warmest.
    parked: Vec<usize>,
    /// Workers without a thread so far. The next to be started is at the end.
    unstarted: Vec<usize>,
}

/// The worker that [`Idle::notify`] picked.
#[derive(Debug)]
pub(super) enum Chosen {
    /// Unpark it.
    Sleeper(usize),
    /// Start its thread.
    Unstarted(usize),
}

impl Idle {
    /// The first worker starts unparked and searching, the others have not started.
    pub(super) fn new(workers: usize) -> Idle {
        let unstarted = (1..workers).rev().collect();
        Idle {
            word: AtomicUsize::new(UNPARKED + 1),
            sleepers: Mutex::new(Sleepers { parked: Vec::with_capacity(workers), unstarted }),
            workers,
        }
    }

    /// Whether a worker may have to be woken, without the fence that makes the answer reliable. Act on a "yes";
    /// ask [`Idle::notify`] after a "no".
    pub(super) fn maybe_asleep(&self) -> bool {
        self.wants_wake(self.word.load(Relaxed))
    }

    /// Call this after posting a task. Picks a worker to be unparked or started, if one sleeps and none
    /// searches. The picked worker counts as unparked and searching from now on. The one that sleeps in the
    /// driver is picked last: it is useful there.
    pub(super) fn notify(&self, in_driver: impl Fn(usize) -> bool) -> Option<Chosen> {
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
        let chosen = sleepers.pick(in_driver).map(Chosen::Sleeper);
        let chosen = chosen.or_else(|| sleepers.unstarted.pop().map(Chosen::Unstarted))?;
        self.word.fetch_add(UNPARKED + 1, Relaxed);
        Some(chosen)
    }

    /// Picks a worker that never ran, if there is one. It counts as for [`Idle::notify`].
    pub(super) fn call_unstarted(&self) -> Option<usize> {
        let worker = unpoisoned(self.sleepers.lock()).unstarted.pop()?;
        self.word.fetch_add(UNPARKED + 1, Relaxed);
        Some(worker)
    }

    /// A picked worker could not be started. The caller then looks at all queues once more.
    pub(super) fn put_back(&self, worker: usize) {
        let mut sleepers = unpoisoned(self.sleepers.lock());
        sleepers.unstarted.push(worker);
        self.word.fetch_sub(UNPARKED + 1, Relaxed);
        drop(sleepers);
        // Ordering: pairs with the fence in `notify`, as that of `end_search`.
        fence(SeqCst);
    }

    /// Picks a parked worker, even if other workers are awake. It never picks one that has not started.
    pub(super) fn wake_sleeper(&self) -> Option<usize> {
        let worker = unpoisoned(self.sleepers.lock()).parked.pop()?;
        self.word.fetch_add(UNPARKED + 1, Relaxed);
        Some(worker)
    }

    /// Picks the parked worker that would be woken last, if none is in the driver and `appoint` agrees.
    /// `appoint` runs under the lock, so a worker that is taken off the list knows what it was appointed to.
    pub(super) fn appoint(
        &self,
        in_driver: impl Fn(usize) -> bool,
        appoint: impl FnOnce(usize) -> bool,
    ) -> Option<usize> {
        if self.word.load(Relaxed) / UNPARKED == self.workers {
            return None;
        }
        let sleepers = unpoisoned(self.sleepers.lock());
        if sleepers.parked.iter().any(|worker| in_driver(*worker)) {
            return None;
        }
        sleepers.parked.first().copied().filter(|worker| appoint(*worker))
    }

    pub(super) fn is_parked(&self, worker: usize) -> bool {
        unpoisoned(self.sleepers.lock()).parked.contains(&worker)
    }

    fn wants_wake(&self, word: usize) -> bool {
        word & SEARCHING == 0 && word / UNPARKED < self.workers
    }

    /// A worker without work asks to search the others' queues. At most half of them search at a time.
    pub(super) fn start_search(&self) -> bool {
        let word = self.word.load(Relaxed);
        if 2 * (word & SEARCHING) >= self.workers {
            return false;
        }
        self.word.fetch_add(1, Relaxed);
        true
    }

    /// A searching worker found something. Returns true if it was the last searcher: if there is more to find,
    /// another should search in its place.
    #[must_use]
    pub(super) fn end_search(&self) -> bool {
        let last = self.word.fetch_sub(1, Relaxed) & SEARCHING == 1;
        // Ordering: pairs with the fence in `notify`. A poster that saw us search has posted before our caller
        // looks.
        fence(SeqCst);
        last
    }

    /// A worker is about to sleep. It must look at all queues once more after this call.
    #[inline(always)]
    pub(super) fn park(&self, worker: usize, searching: bool) {
        let mut sleepers = unpoisoned(self.sleepers.lock());
        sleepers.parked.push(worker);
        self.word.fetch_sub(UNPARKED + usize::from(searching), Relaxed);
        drop(sleepers);
        // Ordering: pairs with the fence in `notify`.
        fence(SeqCst);
    }

    /// A worker woke up, or does not sleep because there is work to `search` for. Returns whether it counts as
    /// searching: if it is about to search, or if `notify` picked it. Otherwise it only leaves the list.
    #[must_use]
    #[inline(always)]
    pub(super) fn unpark(&self, worker: usize, search: bool) -> bool {
        let mut sleepers = unpoisoned(self.sleepers.lock());
        let Some(place) = sleepers.parked.iter().position(|sleeper| *sleeper == worker) else { return true };
        sleepers.parked.remove(place);
        self.word.fetch_add(UNPARKED + usize::from(search), Relaxed);
        search
    }

    /// Whether no worker searches. Reliable after `park`: a search that ends later sees us asleep.
    pub(super) fn nobody_searches(&self) -> bool {
        self.word.load(Relaxed) & SEARCHING == 0
    }
}

impl Sleepers {
    fn pick(&mut self, in_driver: impl Fn(usize) -> bool) -> Option<usize> {
        let last = *self.parked.last()?;
        // At most one is in the driver. If it has just gone there or left, one of the others is still woken.
        let place = self.parked.len() - if self.parked.len() > 1 && in_driver(last) { 2 } else { 1 };
        Some(self.parked.remove(place))
    }
}
