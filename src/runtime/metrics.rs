//! The counters of a runtime.
//!
//! Each worker counts for itself, without atomic read-modify-writes, on cache lines that only it writes. A
//! snapshot adds the workers up, so its numbers may be a moment apart from each other.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::executor::Shared;
use super::shim::AtomicU64;

/// A counter with one writer.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the one writer may call this.
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed) + n, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of one worker.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) polls: Counter,
    pub(super) steals: Counter,
    pub(super) parks: Counter,
    pub(super) wakeups: Counter,
    pub(super) lifo_hits: Counter,
    pub(super) idle_nanos: Counter,
}

/// A snapshot of a runtime's counters, summed over its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Worker threads, including those that were not needed so far.
    pub workers: usize,
    /// Threads of the blocking pool, right now.
    pub blocking_threads: usize,
    /// Tasks spawned so far, blocking jobs not included.
    pub tasks_spawned: u64,
    /// Of these, how many have completed, panicked or were cancelled.
    pub tasks_completed: u64,
    /// Tasks that are alive, right now.
    pub tasks_live: u64,
    /// How often a task was polled.
    pub polls: u64,
    /// Of these, how many took the task from the LIFO slot, directly after the task that woke it.
    pub lifo_hits: u64,
    /// Batches of tasks that one worker took from another.
    pub steals: u64,
    /// Tasks that came from outside the workers: spawned or woken by other threads.
    pub injected: u64,
    /// How often a worker went to sleep.
    pub parks: u64,
    /// How often a worker woke up.
    pub wakeups: u64,
    /// Sleeps that came due.
    pub timers_fired: u64,
    /// Sleeps that wait, right now.
    pub timers_armed: usize,
    /// Sockets that are registered, right now.
    pub sockets: usize,
    /// Time the workers were awake, added up.
    pub busy: Duration,
    /// Time the workers slept, added up. A sleep counts when it ends.
    pub idle: Duration,
    /// Time since the runtime was made.
    pub uptime: Duration,
}

impl Metrics {
    pub(super) fn of(shared: &Shared) -> Metrics {
        let (tasks_spawned, tasks_completed) = shared.owned.counts();
        let uptime = shared.started.elapsed();
        let sum = |field: fn(&Counters) -> &Counter| shared.all_counters().map(|one| field(one).get()).sum();
        let idle = Duration::from_nanos(sum(|one| &one.idle_nanos));
        let workers = shared.workers();
        Metrics {
            workers,
            blocking_threads: shared.pool.threads(),
            tasks_spawned,
            tasks_completed,
            tasks_live: tasks_spawned.saturating_sub(tasks_completed),
            polls: sum(|one| &one.polls),
            lifo_hits: sum(|one| &one.lifo_hits),
            steals: sum(|one| &one.steals),
            injected: shared.injected(),
            parks: sum(|one| &one.parks),
            wakeups: sum(|one| &one.wakeups),
            timers_fired: shared.driver.timers.fired(),
            timers_armed: shared.driver.timers.len(),
            sockets: shared.driver.registrations.len(),
            busy: shared.threads.age().saturating_sub(idle),
            idle,
            uptime,
        }
    }
}
