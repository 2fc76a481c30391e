//! The state that the workers of a runtime share, and the ways in for tasks from other threads.

use std::any::Any;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::super::blocking::Pool;
use super::super::driver::{self, Driver};
use super::super::metrics::{Counters, Metrics, WorkerMetrics, Workers};
use super::super::sampler::Sampler;
use super::super::shim::{AtomicBool, AtomicU64, Mutex, MutexGuard, thread};
use super::super::task::Runnable;
use super::super::testing::Simulation;
use super::super::thread_options::ThreadOptions;
use super::super::trace::{self, TraceEvent, Tracer};
use super::idle::{Chosen, Idle};
use super::owned::Owned;
use super::park::Parker;
use super::queue::{Injector, Local, Remote};
use super::watch::Watch;
use super::worker_threads::WorkerThreads;

/// Counts a wake on a thread outside the workers: some are chosen to be measured.
#[inline(always)]
fn count_outside(task: Runnable) -> Runnable {
    thread_local! {
        static SAMPLER: Sampler = const { Sampler::new() };
    }
    // In models, the countdown would go on in the next run, which then took another way.
    if cfg!(any(wakeloop_loom, wakeloop_shuttle)) {
        task
    } else {
        SAMPLER.with(|sampler| sampler.count(task))
    }
}

/// The runtime behind every handle, worker and spawned task. It is in an `Arc`; tasks point to it without a
/// count (see `owned`).
pub(in super::super) struct Shared {
    pub(super) injector: CachePadded<Injector>,
    pub(super) idle: CachePadded<Idle>,
    pub(in super::super) owned: Owned,
    members: Box<[CachePadded<Member>]>,
    closing: AtomicBool,
    injected: CachePadded<AtomicU64>,
    pub(in super::super) driver: Arc<driver::Handle>,
    /// The worker that holds the lock sleeps in the driver.
    driver_lock: Mutex<Driver>,
    pub(super) watch: Watch,
    pub(in super::super) pool: Pool,
    tracer: Option<Arc<dyn Tracer>>,
    pub(in super::super) threads: WorkerThreads,
    /// The `CurrentThread` of a runtime that has one, which holds this value. Empty for other runtimes.
    pub(super) current_thread: OnceLock<Weak<dyn Any + Send + Sync>>,
    arrive: Arrive,
    /// What a test controls of this runtime.
    simulation: Option<Simulation>,
    started: Instant,
}

/// The part of a worker that others see.
struct Member {
    queue: Remote,
    parker: Parker,
    counters: Counters,
}

/// Creates a worker at the start of its thread. Returns what the thread then does.
pub(in super::super) type Arrive = fn(Arc<Shared>, usize) -> Box<dyn FnOnce()>;

/// The builder's options.
pub(in super::super) struct Options {
    pub(in super::super) workers: usize,
    pub(in super::super) tracer: Option<Arc<dyn Tracer>>,
    pub(in super::super) pool: Pool,
    pub(in super::super) threads: ThreadOptions,
    pub(in super::super) arrive: Arrive,
    /// For a current-thread runtime only.
    pub(in super::super) simulation: Option<Simulation>,
}

impl Shared {
    /// Creates a runtime whose first worker is not yet started, nor taken to be run.
    pub(in super::super) fn new(options: Options) -> Arc<Shared> {
        let (driver, handle) = Driver::new(options.tracer.clone());
        let (locals, members): (Vec<Local>, Vec<_>) = (0..options.workers)
            .map(|_| {
                let (local, queue) = Local::new();
                let member = Member { queue, parker: Parker::default(), counters: Counters::default() };
                (local, CachePadded::new(member))
            })
            .unzip();
        Arc::new(Shared {
            injector: CachePadded::new(Injector::new()),
            idle: CachePadded::new(Idle::new(options.workers)),
            owned: Owned::new(options.workers + 1),
            members: members.into_boxed_slice(),
            closing: AtomicBool::new(false),
            injected: CachePadded::new(AtomicU64::new(0)),
            driver: Arc::new(handle),
            driver_lock: Mutex::new(driver),
            watch: Watch::new(),
            pool: options.pool,
            tracer: options.tracer,
            threads: WorkerThreads::new(options.threads, locals),
            current_thread: OnceLock::new(),
            arrive: options.arrive,
            simulation: options.simulation,
            started: Instant::now(),
        })
    }

    /// Starts the first worker on a thread of its own.
    pub(in super::super) fn start(self: &Arc<Self>) -> io::Result<()> {
        self.start_worker(0)
    }

    fn start_worker(self: &Arc<Self>, worker: usize) -> io::Result<()> {
        let theirs = self.clone();
        let arrive = self.arrive;
        self.threads.start(worker, move || arrive(theirs, worker), |run| run())
    }

    /// What a test controls of this runtime, if it is one of `testing`.
    pub(in super::super) fn simulation(&self) -> Option<&Simulation> {
        self.simulation.as_ref()
    }

    /// Ends the wait of the thread that runs a simulated runtime, or its next wait.
    pub(in super::super) fn end_simulated_wait(&self) {
        self.unpark(0);
    }

    /// Queues a task for whichever worker comes first.
    pub(super) fn inject(self: &Arc<Self>, task: Runnable) {
        self.injector.push(count_outside(task));
        self.injected.fetch_add(1, Relaxed);
        self.wake_one();
    }

    /// Call this after posting work that others could take. Wakes a worker if needed.
    pub(super) fn wake_one(self: &Arc<Self>) {
        match self.idle.notify(|worker| self.parker(worker).is_in_driver()) {
            None => {}
            Some(Chosen::Sleeper(worker)) => self.unpark(worker),
            Some(Chosen::Unstarted(worker)) => self.start_chosen(worker),
        }
    }

    /// Starts a worker that already counts as awake and searching.
    #[cold]
    fn start_chosen(self: &Arc<Self>, worker: usize) {
        if self.start_worker(worker).is_ok() {
            return;
        }
        self.idle.put_back(worker);
        // All running workers were awake a moment ago. But a worker that fell asleep since then may have
        // counted on the chosen worker to search.
        if self.idle.nobody_searches()
            && self.has_work()
            && let Some(sleeper) = self.idle.wake_sleeper()
        {
            self.unpark(sleeper);
        }
    }

    pub(super) fn unpark(&self, worker: usize) {
        self.members[worker].parker.unpark(Some(&self.driver));
    }

    /// Whether there is a queued task that any worker could take.
    pub(super) fn has_work(&self) -> bool {
        !self.injector.is_empty() || self.members.iter().any(|member| !member.queue.is_empty())
    }

    pub(super) fn parker(&self, worker: usize) -> &Parker {
        &self.members[worker].parker
    }

    pub(super) fn counters(&self, worker: usize) -> &Counters {
        &self.members[worker].counters
    }

    pub(super) fn steal(&self, victim: usize, to: &Local) -> Option<Runnable> {
        self.members[victim].queue.steal(to)
    }

    pub(in super::super) fn workers(&self) -> usize {
        self.members.len()
    }

    /// Returns the driver, and opens it if it is closed.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    #[inline]
    pub(in super::super) fn open_driver(self: &Arc<Self>) -> io::Result<&Arc<driver::Handle>> {
        if !self.driver.is_open() {
            self.open_closed_driver()?;
        }
        Ok(&self.driver)
    }

    #[cold]
    fn open_closed_driver(self: &Arc<Self>) -> io::Result<()> {
        if self.driver.open()? {
            self.announce_driver();
        }
        Ok(())
    }

    /// Makes the workers notice the driver, so that one of them sleeps in it from now on.
    #[cold]
    fn announce_driver(self: &Arc<Self>) {
        // A worker that is awake finds the token when it is about to sleep, and looks once more.
        (0..self.members.len()).for_each(|worker| self.unpark(worker));
        if let Some(worker) = self.idle.call_unstarted() {
            self.start_chosen(worker);
        }
    }

    pub(in super::super) fn metrics(&self) -> Metrics {
        let each = self.members.iter().map(|member| WorkerMetrics::of(&member.counters, member.queue.len()));
        let workers = Workers {
            count: self.members.len(),
            started: self.started,
            tasks: self.owned.counts(),
            injected: self.injected.load(Relaxed),
            injector_depth: self.injector.len(),
        };
        Metrics::of(&workers, &self.driver, &self.pool.metrics(), each.collect())
    }

    /// Returns the driver, if it is open and no other worker has it.
    pub(super) fn try_driver(&self) -> Option<MutexGuard<'_, Driver>> {
        if !self.driver.is_open() {
            return None;
        }
        match self.driver_lock.try_lock() {
            Ok(driver) => Some(driver),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The caller has left the driver, and may stay away for long.
    pub(super) fn leave_driver(&self) {
        if self.workers() > 1
            && let Some(worker) = self.watch.left(&self.idle, |worker| self.parker(worker).is_in_driver())
        {
            self.unpark(worker);
        }
    }

    #[inline]
    pub(in super::super) fn trace(&self, event: TraceEvent) {
        if let Some(tracer) = &self.tracer {
            trace::report(&**tracer, event);
        }
    }

    /// Step 1 of the shutdown. Returns at once, and may be called again.
    pub(in super::super) fn close(&self) {
        if !self.threads.close() {
            return;
        }
        // Relaxed: the flag guards no other memory, and workers that are about to park are reached by their
        // unpark.
        self.closing.store(true, Relaxed);
        (0..self.members.len()).for_each(|worker| self.unpark(worker));
        self.pool.close();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Steps 2 to 4, for each worker that leaves. `drain` empties its own queue.
    pub(super) fn leave(&self, drain: impl FnOnce()) {
        self.owned.close(drop);
        drain();
        self.threads.leave(|| {
            self.drain_injector();
            self.driver.close();
        });
    }

    fn drain_injector(&self) {
        loop {
            while let Some(task) = self.injector.pop() {
                drop(task);
            }
            if self.owned.is_empty() {
                return;
            }
            // Another thread is between waking a task and injecting it.
            thread::sleep(Duration::from_micros(20));
        }
    }
}
