//! The list of live tasks, which a shutdown has to end.
//!
//! An intrusive doubly linked list in shards: one per worker, and one for spawns from other threads. A task
//! stays in its first shard.
//!
//! Invariant: a task is in the list from before its first scheduling until its future was dropped, and the
//! executor is not freed while the list has entries. So the holder of a `Runnable` may follow the task's
//! pointer to the executor, without a reference count per task.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crossbeam_utils::CachePadded;

use super::super::lock::SpinLock;
use super::super::shim::{AtomicBool, AtomicU64};
use super::super::task::{Header, Runnable};

pub(in super::super) struct Owned {
    shards: Box<[CachePadded<Shard>]>,
    closed: AtomicBool,
}

struct Shard {
    first: SpinLock<Option<NonNull<Header>>>,
    /// Written under the lock, read without it, for the metrics.
    spawned: AtomicU64,
    completed: AtomicU64,
}

// SAFETY: the pointers are to live tasks, whose links are touched only under the lock.
unsafe impl Send for Shard {}
// SAFETY: the pointers are to live tasks, whose links are touched only under the lock.
unsafe impl Sync for Shard {}

impl Owned {
    pub(super) fn new(shards: usize) -> Owned {
        let shard = || {
            CachePadded::new(Shard {
                first: SpinLock::new(None),
                spawned: AtomicU64::new(0),
                completed: AtomicU64::new(0),
            })
        };
        Owned { shards: (0..shards).map(|_| shard()).collect(), closed: AtomicBool::new(false) }
    }

    /// Adds a new task. Returns it if the list is closed.
    pub(super) fn insert(&self, task: Runnable, shard: usize) -> Result<Runnable, Runnable> {
        let header = task.header();
        let home = &self.shards[shard];
        let mut first = home.first.lock();
        // Relaxed: `close` takes every shard's lock after it has set the flag. Either our section comes first,
        // and it finds the task there, or its section comes first, and we see the flag.
        if self.closed.load(Relaxed) {
            drop(first);
            return Err(task);
        }
        // SAFETY: the task is alive, because we hold its `Runnable`. The links are under the lock, and nobody
        // reads `owner` before the task is published.
        unsafe {
            header.as_ref().owner.set(shard as u16);
            (*header.as_ref().links.get()).next = *first;
            if let Some(second) = *first {
                (*second.as_ref().links.get()).prev = Some(header);
            }
        }
        *first = Some(header);
        bump(&home.spawned);
        Ok(task)
    }

    /// Removes a task whose future was dropped.
    ///
    /// # Safety
    /// The task was inserted here, is alive, and is not removed twice.
    pub(in super::super) unsafe fn remove(&self, header: NonNull<Header>) {
        // SAFETY: alive by contract. Its neighbours are alive because they are in the list. All links are under
        // the lock.
        unsafe {
            let home = &self.shards[header.as_ref().owner.get() as usize];
            let mut first = home.first.lock();
            let links = std::mem::take(&mut *header.as_ref().links.get());
            if let Some(next) = links.next {
                (*next.as_ref().links.get()).prev = links.prev;
            }
            match links.prev {
                Some(prev) => (*prev.as_ref().links.get()).next = links.next,
                None => *first = links.next,
            }
            bump(&home.completed);
        }
    }

    /// Refuses new tasks and asks all others to stop. Idle ones are passed to the caller to be dropped; queued
    /// and running ones end where they are. Several threads may call this at once.
    pub(super) fn close(&self, mut drop_task: impl FnMut(Runnable)) {
        // Relaxed: see `insert`.
        self.closed.store(true, Relaxed);
        let mut claimed = VecDeque::new();
        for shard in &self.shards {
            let first = shard.first.lock();
            let mut cursor = *first;
            while let Some(header) = cursor {
                // SAFETY: in the list, hence alive; the links are under the lock.
                unsafe {
                    claimed.extend(Header::claim_for_cancel(header));
                    cursor = (*header.as_ref().links.get()).next;
                }
            }
            drop(first);
            // Outside the lock: dropping a task removes it from the list.
            claimed.drain(..).for_each(&mut drop_task);
        }
    }

    /// Calls `f` with the name of each live task's type.
    pub(super) fn each_name(&self, mut f: impl FnMut(&'static str)) {
        for shard in &self.shards {
            let first = shard.first.lock();
            let mut cursor = *first;
            while let Some(header) = cursor {
                // SAFETY: in the list, hence alive; the links are under the lock.
                unsafe {
                    f(header.as_ref().name());
                    cursor = (*header.as_ref().links.get()).next;
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.first.lock().is_none())
    }

    /// Returns how many tasks were ever inserted and removed.
    pub(in super::super) fn counts(&self) -> (u64, u64) {
        // Completions first, so that the difference is never negative.
        let completed: u64 = self.shards.iter().map(|shard| shard.completed.load(Acquire)).sum();
        let spawned = self.shards.iter().map(|shard| shard.spawned.load(Relaxed)).sum();
        (spawned, completed)
    }
}

/// Adds one to a counter that has a single writer at a time.
fn bump(counter: &AtomicU64) {
    // Ordering: Release pairs with the Acquire in `counts`: a reader that sees the completion sees the spawn.
    counter.store(counter.load(Relaxed) + 1, Release);
}
