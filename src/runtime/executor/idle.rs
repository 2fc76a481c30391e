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
    sleepers: Mutex<Sleepers>,
    workers: usize,
}

/// The workers that are not counted as unparked.
struct Sleepers {
    /// The last to park at the end: its caches are warmest.
    parked: Vec<usize>,
    /// Without a thread so far; the next to get one at the end.
    unstarted: Vec<usize>,
}

/// Whom [`Idle::notify`] picked.
#[derive(Debug)]
pub(super) enum Chosen {
    /// To be unparked.
    Sleeper(usize),
    /// To be started.
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

    /// Whether someone may have to be woken, without the fence that makes the answer reliable: a "yes" is worth
    /// acting on, a "no" must be asked again by [`Idle::notify`].
    pub(super) fn maybe_asleep(&self) -> bool {
        self.wants_wake(self.word.load(Relaxed))
    }

    /// After a task was posted: picks a worker to be unparked or started, if one sleeps and nobody searches. It counts
    /// as unparked and searching from now on. Whoever sleeps in the driver is picked last: there it is of use.
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

    /// Picks a worker that never ran, if there is one; as for [`Idle::notify`].
    pub(super) fn call_unstarted(&self) -> Option<usize> {
        let worker = unpoisoned(self.sleepers.lock()).unstarted.pop()?;
        self.word.fetch_add(UNPARKED + 1, Relaxed);
        Some(worker)
    }

    /// A worker that was to be started could not be. The caller looks at all queues once more.
    pub(super) fn put_back(&self, worker: usize) {
        let mut sleepers = unpoisoned(self.sleepers.lock());
        sleepers.unstarted.push(worker);
        self.word.fetch_sub(UNPARKED + 1, Relaxed);
        drop(sleepers);
        // Ordering: pairs with the fence in `notify`, as that of `end_search`.
        fence(SeqCst);
    }

    /// Picks a worker to be unparked, whoever else is awake; none that never ran.
    pub(super) fn wake_sleeper(&self) -> Option<usize> {
        let worker = unpoisoned(self.sleepers.lock()).parked.pop()?;
        self.word.fetch_add(UNPARKED + 1, Relaxed);
        Some(worker)
    }

    /// Of the parked the one that is woken last, if none of them is in the driver and `appoint` agrees. That runs under the
    /// lock: who is off the list knows what it was appointed to.
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
        sleepers.parked.push(worker);
        self.word.fetch_sub(UNPARKED + usize::from(searching), Relaxed);
        drop(sleepers);
        // Ordering: pairs with the fence in `notify`.
        fence(SeqCst);
    }

    /// A worker woke up, or did not go to sleep because there is work to `search` for. Whether it counts as searching:
    /// then, or if `notify` chose it; else it only takes itself off the list.
    #[must_use]
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
        // One at most is in the driver. Should it have gone there, or left, just now, somebody is woken all the same.
        let place = self.parked.len() - if self.parked.len() > 1 && in_driver(last) { 2 } else { 1 };
        Some(self.parked.remove(place))
    }
}
