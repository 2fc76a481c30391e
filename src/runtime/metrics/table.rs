//! The table of the runtime's metrics.

use std::time::{Duration, Instant};

use super::super::blocking::PoolMetrics;
use super::super::clock;
use super::super::driver;
use super::measures::{Counter, Durations, Histogram, Presence};
use crate::metrics::metrics;

/// The figures that a snapshot takes from the workers together.
pub(in super::super) struct Workers {
    pub(in super::super) count: usize,
    pub(in super::super) started: Instant,
    /// How many were spawned, and how many have ended.
    pub(in super::super) tasks: (u64, u64),
    pub(in super::super) injected: u64,
    pub(in super::super) injector_depth: usize,
}

metrics! {
    /// The work of one worker, in a snapshot. All is zero for a worker that was not needed so far.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct WorkerMetrics;

    /// The counters of one worker.
    #[derive(Debug, Default)]
    pub(in super::super) struct Counters {
        presence: Presence,
    }

    /// A snapshot of a runtime's counters, summed over its workers and for each of them.
    ///
    /// Counters and times never fall.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Metrics(workers: &Workers, driver: &driver::Handle, pool: &PoolMetrics) {
        /// Each worker's part.
        per_worker,
    }

    both {
        /// For a current-thread runtime, that includes the time in which no thread was in `block_on`.
        counter busy: Duration = "Time workers were awake, waits for the GIL included";
        counter idle: Duration = "Time workers slept";
        counter polls: u64 in Counter = "Polls of tasks by workers";
        /// They came from the LIFO slot.
        counter lifo_hits: u64 in Counter = "Polls that took the task that the task before had woken last";
        counter steals: u64 in Counter = "Batches of tasks that a worker took from another";
        counter parks: u64 in Counter = "How often a worker went to sleep";
        counter wakeups: u64 in Counter = "How often a worker woke up";
        /// It is the time from the wake, or from the spawn, to the poll.
        ///
        /// It is measured for a sample of the wakes: for each, if a thread wakes rarely, and for one in 240 on
        /// average, if it wakes often. A sample counts as often as there are wakes for which it stands, so the counts
        /// approach those of all wakes. The maximum is the longest delay in the sample. The precision is a
        /// microsecond.
        ///
        /// A socket or a timer wakes its task when a worker looks at the driver. The time before that look is not
        /// included, nor are the tasks of a [`LocalSet`](crate::runtime::LocalSet) and the futures of
        /// [`block_on`](crate::runtime::Runtime::block_on), which have no place in a queue.
        histogram delay: Histogram in Durations = "How long tasks had been ready when a worker polled them";
    }

    part {
        /// The one in the LIFO slot is not included.
        gauge queue_depth: usize = "Tasks in the worker's own queue";
    }

    whole {
        gauge workers: usize = "Worker threads, including those that were not needed so far", workers.count;
        counter uptime: Duration = "Time since the runtime started", workers.started.elapsed();
        /// Blocking jobs are not included.
        counter tasks_spawned: u64 = "Tasks that were spawned", workers.tasks.0;
        counter tasks_completed: u64 = "Tasks that have completed, panicked or were cancelled", workers.tasks.1;
        gauge tasks_live: u64 = "Tasks that are alive", workers.tasks.0.saturating_sub(workers.tasks.1);
        counter injected: u64 = "Tasks that other threads than workers have spawned or woken", workers.injected;
        gauge injector_depth: usize = "Tasks from outside the workers that no worker has taken",
            workers.injector_depth;
        /// Those in the LIFO slots are not included.
        gauge local_queue_depth: usize = "Tasks in the workers' own queues",
            per_worker.iter().map(|worker| worker.queue_depth).sum();
        /// A spin is polls in close succession, before the worker goes to sleep.
        counter spins: u64 = "Waits of workers that began with a spin", driver.spins.begun.get();
        counter spin_hits: u64 = "Spins of workers that found something", driver.spins.hits.get();
        /// It is part of `idle`.
        counter spin_lost: Duration = "Time in spins of workers that found nothing",
            Duration::from_nanos(driver.spins.lost.get());
        counter timers_fired: u64 = "Sleeps that came due", driver.timers.fired();
        gauge timers_armed: usize = "Sleeps that wait", driver.timers.len();
        gauge sockets: usize = "Sockets of the runtime", driver.registrations.len();
        gauge blocking_threads: usize = "Threads of the pool for blocking jobs", pool.threads;
        gauge blocking_idle_threads: usize = "Threads of the pool that wait for a job", pool.idle_threads;
        gauge blocking_queue_depth: usize = "Blocking jobs that wait for a thread", pool.queue_depth;
        /// Those are included that were cancelled while they waited.
        counter blocking_jobs: u64 = "Blocking jobs that came to a thread", pool.wait.count();
        /// Every job is counted.
        histogram blocking_wait: Histogram = "How long blocking jobs had waited for a thread", pool.wait.clone();
    }
}

impl Metrics {
    pub(in super::super) fn of(
        workers: &Workers,
        driver: &driver::Handle,
        pool: &PoolMetrics,
        each: Vec<WorkerMetrics>,
    ) -> Metrics {
        Metrics::read(workers, driver, pool, each)
    }
}

impl WorkerMetrics {
    pub(in super::super) fn of(counters: &Counters, queue_depth: usize) -> WorkerMetrics {
        let (busy, idle) = counters.presence.busy_and_idle(clock::nanos);
        WorkerMetrics { busy, idle, queue_depth, ..WorkerMetrics::read(counters) }
    }
}
