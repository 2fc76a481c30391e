//! The state that the workers of a runtime share, and the ways in for tasks from other threads.

use std::future::Future;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::super::blocking::Pool;
use super::super::builder::ThreadOptions;
use super::super::context;
use super::super::driver::{self, Driver};
use super::super::metrics::{Counters, WorkerMetrics};
use super::super::sampler::Sampler;
use super::super::shim::{AtomicBool, AtomicU64, Mutex, MutexGuard, thread};
use super::super::task::{self, JoinHandle, Runnable, Sample};
use super::super::testing::Simulation;
use super::super::trace::{self, TraceEvent, Tracer};
use super::current_thread::CurrentThread;
use super::idle::{Chosen, Idle};
use super::owned::Owned;
use super::park::Parker;
use super::queue::{Injector, Local, Remote};
use super::watch::Watch;
use super::worker::{Worker, current_worker};
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
    /// The place of the only worker of a current-thread runtime. Empty for other runtimes.
    current_thread: OnceLock<Weak<CurrentThread>>,
    /// What a test controls of this runtime.
    simulation: Option<Simulation>,
    pub(in super::super) started: Instant,
}

/// The part of a worker that others see.
struct Member {
    queue: Remote,
    parker: Parker,
    counters: Counters,
}

/// The builder's options.
pub(in super::super) struct Options {
    pub(in super::super) workers: usize,
    pub(in super::super) tracer: Option<Arc<dyn Tracer>>,
    pub(in super::super) pool: Pool,
    pub(in super::super) threads: ThreadOptions,
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
            simulation: options.simulation,
            started: Instant::now(),
        })
    }

    /// Starts the first worker on a thread of its own.
    pub(in super::super) fn start(self: &Arc<Self>) -> io::Result<()> {
        self.threads.start(self, 0)
    }

    /// Returns the first worker, for the caller to run.
    pub(in super::super) fn take_worker(self: &Arc<Self>) -> Worker {
        self.threads.enlist();
        self.arrive(0)
    }

    /// Creates the place of the only worker, which a thread in `block_on` runs.
    pub(in super::super) fn make_current_thread(self: &Arc<Self>) -> Arc<CurrentThread> {
        let place = Arc::new(CurrentThread::new(self.take_worker()));
        // The place holds an `Arc` of this value, so this value must not hold one of the place.
        self.current_thread.get_or_init(|| Arc::downgrade(&place));
        place
    }

    pub(in super::super) fn current_thread(&self) -> Option<Arc<CurrentThread>> {
        self.current_thread.get()?.upgrade()
    }

    /// What a test controls of this runtime, if it is one of `testing`.
    pub(in super::super) fn simulation(&self) -> Option<&Simulation> {
        self.simulation.as_ref()
    }

    /// Ends the wait of the thread that runs a simulated runtime, or its next wait.
    pub(in super::super) fn end_simulated_wait(&self) {
        self.unpark(0);
    }

    /// Creates the worker at the start of its thread. It counts as searching.
    pub(super) fn arrive(self: &Arc<Self>, worker: usize) -> Worker {
        Worker::new(self.clone(), worker, self.threads.queue(worker))
    }

    /// Spawns from any thread. If the runtime is closed, the task is cancelled at once.
    pub(in super::super) fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(
        self: &Arc<Self>,
        future: F,
    ) -> JoinHandle<F::Output> {
        let (task, handle) = task::new(future, Arc::as_ptr(self));
        let home = |index| {
            let task = self.owned.insert(task, index).ok()?;
            self.trace(TraceEvent::Spawned { task: task.id() });
            Some(task)
        };
        // SAFETY: the reference is given up before this call returns to the worker's loop.
        match unsafe { current_worker(Arc::as_ptr(self)) } {
            Some(worker) => {
                if let Some(task) = home(worker.index()) {
                    worker.post(task);
                }
            }
            None => {
                if let Some(task) = home(self.members.len()) {
                    self.inject(task);
                }
            }
        }
        handle
    }

    /// As `spawn`, but the first poll happens now, on the calling thread. A future that is ready at once is
    /// never queued. Any other is queued when it is woken.
    pub(in super::super) fn spawn_here<F: Future<Output: Send + 'static> + Send + 'static>(
        self: &Arc<Self>,
        future: F,
    ) -> JoinHandle<F::Output> {
        let (task, handle) = task::new(future, Arc::as_ptr(self));
        if let Ok(task) = self.owned.insert(task, self.members.len()) {
            let _entered = context::enter(self);
            task.run();
        }
        handle
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
        if self.threads.start(self, worker).is_ok() {
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

    pub(in super::super) fn injected(&self) -> u64 {
        self.injected.load(Relaxed)
    }

    pub(in super::super) fn injector_depth(&self) -> usize {
        self.injector.len()
    }

    pub(in super::super) fn worker_metrics(&self) -> impl Iterator<Item = WorkerMetrics> {
        self.members.iter().map(|member| WorkerMetrics::of(&member.counters, member.queue.len()))
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

/// Queues a woken task: on the current thread's worker, if it belongs to the task's runtime, else in the
/// injector.
///
/// # Safety
/// `shared` is the executor of `task`.
pub(in super::super) unsafe fn schedule(shared: *const Shared, task: Runnable) {
    // SAFETY: while we hold the `Runnable` of one of its tasks the executor is alive (see `owned`). Once the
    // task is queued, it may complete and the executor may be freed. A worker holds its own `Arc`; here we take
    // one.
    unsafe {
        (*shared).trace(TraceEvent::Woken { task: task.id() });
        match current_worker(shared) {
            Some(worker) => worker.post(task),
            None => {
                Arc::increment_strong_count(shared);
                Arc::from_raw(shared).inject(task);
            }
        }
    }
}

/// Queues a task that was woken during its poll, behind all others.
///
/// # Safety
/// `shared` is the executor of `task`.
#[inline(always)]
pub(in super::super) unsafe fn reschedule(shared: *const Shared, task: Runnable) {
    // SAFETY: by contract.
    match unsafe { current_worker(shared) } {
        Some(worker) => {
            worker.post_behind(worker.sampler.count(task));
        }
        // SAFETY: by contract.
        None => unsafe { schedule(shared, task) },
    }
}

/// The worker of the current thread is about to poll the task of a sample.
///
/// # Safety
/// `shared` is the executor of the task, and is alive.
pub(in super::super) unsafe fn record_delay(shared: *const Shared, sample: Sample) {
    // SAFETY: the reference is given up before this call returns to the worker's loop.
    if let Some(worker) = unsafe { current_worker(shared) } {
        worker.record_delay(sample);
    }
}
