//! The pool: its queue, its threads, and which of them comes next.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::super::clock;
use super::super::condition::wait_until;
use super::super::metrics::{Durations, Histogram};
use super::super::shim::{AtomicUsize, Condvar, Mutex, MutexGuard};
use super::super::task::{self, JoinHandle, Runnable};
use super::super::thread_options::ThreadOptions;
use super::running_job::RunningJob;
use crate::poison::unpoisoned;

/// A thread that is called within this time, in nanoseconds, after it went to sleep lingers after its next jobs:
/// it stays awake for this long and yields its processor meanwhile, because sleeping and being woken would cost
/// more. The first time that no job comes, it stops lingering, until it is again called this soon.
const LINGER: u64 = 50_000;
/// Models do not linger, because time does not pass in them.
const CAN_LINGER: bool = cfg!(not(any(wakeloop_loom, wakeloop_shuttle)));

/// A pool without a runtime, for jobs that await nothing in a process that may never need a runtime.
///
/// Dropping it does not stop its threads. They end after they were idle for a while.
pub struct BlockingPool(Pool);

impl BlockingPool {
    /// Creates a pool of at most `threads` threads, which start on demand.
    pub fn new(threads: usize, keep_alive: Duration) -> BlockingPool {
        BlockingPool(Pool::new(threads.max(1), keep_alive, ThreadOptions::default()))
    }

    /// Runs `f` on a thread of the pool, or as soon as one is free. If no thread can be started at all, the job
    /// is cancelled: `f` is dropped.
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.0.run(Job(Some(f)), &())
    }

    /// Ends the threads, the idle ones at once. Waits until they have ended, but not for longer than `most`. Jobs that
    /// were submitted run; a job that is submitted from now on is cancelled.
    pub fn retire(&self, most: Duration) {
        self.0.retire();
        self.0.wait_left(Instant::now().checked_add(most));
    }

    /// Runs `f` as [`spawn`](BlockingPool::spawn) does, then calls `notify` with its output, as
    /// [`Handle::spawn_blocking_and_notify`](crate::runtime::Handle::spawn_blocking_and_notify) does.
    pub fn spawn_and_notify<F, T, G>(&self, f: F, notify: G) -> JoinHandle<()>
    where
        F: FnOnce() -> T + Send + 'static,
        G: FnOnce(T) + Send + 'static,
    {
        self.0.run(Notifying(Some((f, notify))), &())
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingPool").field("threads", &self.0.threads()).finish_non_exhaustive()
    }
}

/// No thread can run a blocking job: the system has none left, or the runtime was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoThread;

impl fmt::Display for NoThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no thread could be started, or the runtime was shut down")
    }
}

impl std::error::Error for NoThread {}

impl From<NoThread> for io::Error {
    fn from(error: NoThread) -> io::Error {
        io::Error::other(error)
    }
}

/// A job that runs a function.
pub(in super::super) struct Job<F>(pub(in super::super) Option<F>);

impl<F> Unpin for Job<F> {}

impl<F: FnOnce() -> T, T> Future for Job<F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        match self.0.take() {
            Some(f) => Poll::Ready(f()),
            None => unreachable!("a job is polled once"),
        }
    }
}

/// A job that passes its output to a callback.
pub(in super::super) struct Notifying<F, G>(pub(in super::super) Option<(F, G)>);

impl<F, G> Unpin for Notifying<F, G> {}

impl<F: FnOnce() -> T, T, G: FnOnce(T)> Future for Notifying<F, G> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some((f, notify)) = self.0.take() else { unreachable!("a job is polled once") };
        let output = f();
        task::job_ends(context.waker());
        notify(output);
        Poll::Ready(())
    }
}

/// What a thread of the pool needs besides the pool: its runtime, if it has one.
pub(in super::super) trait Surroundings: Clone + Send + 'static {
    /// Runs `body` on the thread, as a part of the runtime.
    fn enter(&self, body: impl FnOnce());

    /// A job waits for [`Pool::run_queued`].
    fn job_waits(&self) {}
}

/// A pool without a runtime needs nothing else.
impl Surroundings for () {
    fn enter(&self, body: impl FnOnce()) {
        body();
    }
}

/// The threads of one runtime, shared with them by `Arc`.
pub(in super::super) struct Pool(Arc<Inner>);

struct Inner {
    state: Mutex<PoolState>,
    /// Threads that have finished a job, have yet to notify the task that waits for it, and then return to the
    /// queue. Like called threads, they will take jobs from the queue. Counted down under the lock.
    returning: AtomicUsize,
    /// How many jobs were submitted so far. A lingering thread reads it without the lock.
    submitted: AtomicUsize,
    /// Signalled when a job comes, or when the pool is closed.
    work: Condvar,
    /// Signalled when a thread leaves.
    left: Condvar,
    cap: usize,
    keep_alive: Duration,
    options: ThreadOptions,
}

struct PoolState {
    jobs: VecDeque<QueuedJob>,
    /// How long jobs have waited for a thread.
    waits: Durations,
    /// Threads that are being started, or that will return to the queue before they leave.
    threads: usize,
    /// `threads`, and the threads that are ending: they do not return to the queue, and no job waits for them.
    present: usize,
    /// Threads that wait in the condvar and were not called.
    idle: usize,
    /// Idle threads that were called and have not noticed yet. They will take jobs from the queue.
    called: usize,
    /// Threads that are being started. They will take jobs from the queue too.
    starting: usize,
    closed: bool,
}

struct QueuedJob {
    job: Runnable,
    /// When it was submitted, in nanoseconds of the clock.
    since: u64,
}

/// The pool's part of [`Metrics`](crate::runtime::Metrics).
pub(in super::super) struct PoolMetrics {
    pub(in super::super) threads: usize,
    pub(in super::super) idle_threads: usize,
    pub(in super::super) queue_depth: usize,
    pub(in super::super) wait: Histogram,
}

/// How the next thread comes to the queue.
enum NextThread {
    /// No thread is needed, or the pool has all the threads that it may have.
    None,
    /// It never has any: see [`Pool::run_queued`].
    Never,
    Call,
    Start,
}

impl Pool {
    pub(in super::super) fn new(cap: usize, keep_alive: Duration, options: ThreadOptions) -> Pool {
        let state = PoolState {
            jobs: VecDeque::new(),
            waits: Durations::default(),
            threads: 0,
            present: 0,
            idle: 0,
            called: 0,
            starting: 0,
            closed: false,
        };
        Pool(Arc::new(Inner {
            state: Mutex::new(state),
            returning: AtomicUsize::new(0),
            submitted: AtomicUsize::new(0),
            work: Condvar::new(),
            left: Condvar::new(),
            cap,
            keep_alive,
            options,
        }))
    }

    /// Runs a job: a future that is ready when it is first polled.
    pub(in super::super) fn run<F: Future<Output: Send> + Send + 'static>(
        &self,
        job: F,
        shared: &impl Surroundings,
    ) -> JoinHandle<F::Output> {
        let (job, handle) = task::new_job(job);
        self.submit(job, shared);
        handle
    }

    fn submit(&self, job: Runnable, shared: &impl Surroundings) {
        let since = clock::nanos();
        let mut state = unpoisoned(self.0.state.lock());
        if state.closed {
            drop(state);
            drop(job);
            return;
        }
        state.jobs.push_back(QueuedJob { job, since });
        self.0.submitted.fetch_add(1, Relaxed);
        let next = self.0.summon(&mut state);
        drop(state);
        self.0.fetch(next, shared);
    }

    pub(in super::super) fn threads(&self) -> usize {
        unpoisoned(self.0.state.lock()).threads
    }

    /// How many jobs wait for a thread.
    pub(in super::super) fn queued(&self) -> usize {
        unpoisoned(self.0.state.lock()).jobs.len()
    }

    /// Runs the job at this place of the queue on the current thread, for a pool that may have no thread.
    pub(in super::super) fn run_queued(&self, place: usize) {
        let queued = unpoisoned(self.0.state.lock()).jobs.remove(place);
        if let Some(QueuedJob { job, .. }) = queued {
            let running = RunningJob::new(&self.0.returning);
            job.run_job(&running);
            // The count of returning threads goes down under the lock.
            let _state = unpoisoned(self.0.state.lock());
            drop(running);
        }
    }

    pub(in super::super) fn metrics(&self) -> PoolMetrics {
        let state = unpoisoned(self.0.state.lock());
        PoolMetrics {
            threads: state.threads,
            idle_threads: state.idle,
            queue_depth: state.jobs.len(),
            wait: Histogram::from(&state.waits),
        }
    }

    /// Refuses new jobs and drops the waiting ones. Idle threads leave.
    pub(in super::super) fn close(&self) {
        let mut state = unpoisoned(self.0.state.lock());
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        let any = state.threads > 0;
        drop(state);
        if any {
            self.0.work.notify_all();
        }
        drop(jobs);
    }

    /// Ends the threads: the idle ones now, the others behind the jobs that were submitted before. Nobody may submit
    /// another job.
    fn retire(&self) {
        let pool = &self.0;
        unpoisoned(pool.state.lock()).closed = true;
        pool.work.notify_all();
    }

    /// Waits for the threads to leave. Returns false if the deadline came first.
    pub(in super::super) fn wait_left(&self, deadline: Option<Instant>) -> bool {
        let state = unpoisoned(self.0.state.lock());
        wait_until(&self.0.left, state, deadline, |state| state.present == 0).present == 0
    }
}

impl PoolState {
    /// Decides which thread takes the jobs in the queue, unless one is on its way already. A thread is started
    /// only if there are fewer than `cap`. The caller acts on the result after unlocking.
    fn summon(&mut self, cap: usize) -> NextThread {
        if self.called + self.starting > 0 || self.jobs.is_empty() {
            return NextThread::None;
        }
        if self.idle > 0 {
            self.idle -= 1;
            self.called += 1;
            return NextThread::Call;
        }
        if self.threads < cap {
            self.threads += 1;
            self.present += 1;
            self.starting += 1;
            return NextThread::Start;
        }
        if cap == 0 { NextThread::Never } else { NextThread::None }
    }
}

impl Inner {
    /// As [`PoolState::summon`], but also counts a thread that is returning to the queue.
    fn summon(&self, state: &mut PoolState) -> NextThread {
        // A task that submits because its job ended sees the returning thread here: the task's state word
        // orders the two.
        if self.returning.load(Relaxed) > 0 { NextThread::None } else { state.summon(self.cap) }
    }

    fn fetch(self: &Arc<Self>, next: NextThread, shared: &impl Surroundings) {
        match next {
            NextThread::None => {}
            NextThread::Never => shared.job_waits(),
            NextThread::Call => self.work.notify_one(),
            NextThread::Start => {
                let (place, theirs) =
                    (ThreadPlace { pool: self.clone(), stage: Stage::Starting }, shared.clone());
                // If the thread does not start, dropping its `ThreadPlace` corrects the counts.
                let _ = self.options.spawn("blocking", move || place, move |place| place.serve(theirs));
            }
        }
    }

    fn work(self: &Arc<Self>, shared: &impl Surroundings) {
        let mut now = clock::nanos();
        let mut state = unpoisoned(self.state.lock());
        state.starting -= 1;
        let mut lingers = false;
        loop {
            if let Some(QueuedJob { job, since }) = state.jobs.pop_front() {
                state.waits.note(now.saturating_sub(since), 1);
                let (last, known) = (state.jobs.is_empty(), self.submitted.load(Relaxed));
                let next = self.summon(&mut state);
                drop(state);
                self.fetch(next, shared);
                let running = RunningJob::new(&self.returning);
                job.run_job(&running);
                if lingers && last && running.has_ended() {
                    lingers = self.linger(known);
                }
                now = clock::nanos();
                state = unpoisoned(self.state.lock());
                drop(running);
                continue;
            }
            if !state.closed {
                state.idle += 1;
                let since = now;
                let (relocked, stays) = self.wait(state, since);
                state = relocked;
                now = clock::nanos();
                if stays {
                    lingers = CAN_LINGER && now.saturating_sub(since) < LINGER;
                    continue;
                }
            }
            // From now on, a submitter does not count on this thread.
            state.threads -= 1;
            return;
        }
    }

    /// Waits a moment for a job beyond the `known` ones. Meanwhile the thread counts as returning. Returns
    /// false if none came.
    fn linger(&self, known: usize) -> bool {
        let since = clock::nanos();
        while self.submitted.load(Relaxed) == known {
            if clock::nanos().saturating_sub(since) >= LINGER {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Waits to be called. Meanwhile the thread counts as idle. Returns false if nobody called in time, or if
    /// the pool was closed.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, PoolState>,
        since: u64,
    ) -> (MutexGuard<'a, PoolState>, bool) {
        let until = since.saturating_add(self.keep_alive.as_nanos().try_into().unwrap_or(u64::MAX));
        loop {
            if state.called > 0 {
                // A call is for any waiting thread: the first to wake takes it.
                state.called -= 1;
                return (state, true);
            }
            let left = Duration::from_nanos(until.saturating_sub(clock::nanos()));
            if state.closed || left.is_zero() {
                state.idle -= 1;
                return (state, false);
            }
            state = unpoisoned(self.work.wait_timeout(state, left)).0;
        }
    }
}

/// A thread's place in the counts. Dropping it corrects them, also if a hook of the thread panics, or if the
/// thread is not even started.
struct ThreadPlace {
    pool: Arc<Inner>,
    stage: Stage,
}

/// Which counts a thread is a part of, besides `present`.
enum Stage {
    /// A part of `PoolState::starting` and of `PoolState::threads`.
    Starting,
    /// A part of `PoolState::threads`.
    Serving,
    Leaving,
}

impl ThreadPlace {
    /// Runs jobs until the thread leaves the pool. Returns the place, so that it is dropped last, after the
    /// stop hook.
    fn serve(mut self, shared: impl Surroundings) -> ThreadPlace {
        self.stage = Stage::Serving;
        shared.enter(|| self.pool.work(&shared));
        self.stage = Stage::Leaving;
        // This may be the last reference, and dropping it may end the runtime. So no lock is held here.
        drop(shared);
        self
    }
}

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        let mut state = unpoisoned(self.pool.state.lock());
        state.present -= 1;
        let (mut call, mut stranded) = (false, VecDeque::new());
        if !matches!(self.stage, Stage::Leaving) {
            // Submitters counted on this thread to take their jobs.
            state.threads -= 1;
            state.starting -= usize::from(matches!(self.stage, Stage::Starting));
            if state.threads == 0 {
                // The system may refuse another thread as well. So the jobs are cancelled instead of waiting
                // forever.
                stranded = std::mem::take(&mut state.jobs);
            } else {
                // A busy thread takes the jobs later. A sleeping thread has to be called.
                call = matches!(state.summon(0), NextThread::Call);
            }
        }
        drop(state);
        if call {
            self.pool.work.notify_one();
        }
        self.pool.left.notify_all();
        drop(stranded);
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use super::*;
    use crate::runtime::block_on;

    #[test]
    fn no_thread_is_started_while_one_returns_to_the_queue() {
        let pool = BlockingPool::new(2, Duration::from_secs(60));
        let returning = RunningJob::new(&pool.0.0.returning);
        returning.ends();
        let counts_on_it = pool.spawn(|| 1);
        assert_eq!(pool.0.threads(), 0);
        drop(returning);
        assert_eq!(block_on(pool.spawn(|| 2)).unwrap(), 2);
        assert_eq!(block_on(counts_on_it).unwrap(), 1);
        assert_eq!(pool.0.0.returning.load(Relaxed), 0);
    }
}

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../../tests/models/blocking.rs"]
mod model;
