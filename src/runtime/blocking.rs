//! The pool for functions that block: threads that come on demand and go when idle.
//!
//! A job is a task whose future runs the function in its first and only poll; so `JoinHandle`, panics and
//! cancellation are those of tasks. Aborting a job that has not begun drops it; one that runs, runs on.
//!
//! At most one thread is on its way (called or being started) at a time. When it arrives and finds more jobs than
//! its own, it sends for the next before it begins. So a batch of jobs that block gets a thread each, one after the
//! other, while a batch of tiny ones is done by the first few before a dozen threads were woken for nothing; and
//! whoever submits, mostly a worker in a poll, pays for one wake at most. A thread that is about to tell a task of the
//! end of its job counts as on its way, too: the task's next job is often there before the thread is back.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::builder::ThreadOptions;
use super::executor::Shared;
use super::shim::{AtomicUsize, Condvar, Mutex, MutexGuard};
use super::task::{self, JoinHandle, Runnable};
use super::{context, unpoisoned, wait_until};

/// A thread that was called so soon after it had gone to sleep stays awake for as long after its next job, and gives its
/// processor to whoever wants it meanwhile: to sleep and to be woken would cost it more. The first time that it does so
/// for nothing is the last until it is called so soon again.
const LINGER: Duration = Duration::from_micros(50);
/// Not in models: they know no time.
const CAN_LINGER: bool = cfg!(not(any(wakeloop_loom, wakeloop_shuttle)));

/// Runs `f` on a thread where blocking is allowed, on the pool of the current runtime.
///
/// Jobs beyond the pool's cap wait in a queue. On a runtime that was shut down the job is cancelled.
///
/// # Panics
/// If the thread belongs to no runtime.
pub fn spawn_blocking<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    context::with(|shared| spawn_on(shared, f))
}

pub(super) fn spawn_on<F, T>(shared: &Arc<Shared>, f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    shared.pool().run(Job(Some(f)), shared)
}

pub(super) fn spawn_and_tell_on<F, T, G>(shared: &Arc<Shared>, f: F, tell: G) -> JoinHandle<()>
where
    F: FnOnce() -> T + Send + 'static,
    G: FnOnce(T) + Send + 'static,
{
    shared.pool().run(Told(Some((f, tell))), shared)
}

/// A pool without a runtime: for jobs that await nothing, in a process that may never need more.
///
/// Dropping it leaves its threads alone; they go when they were idle for a while.
pub struct BlockingPool(Pool);

impl BlockingPool {
    /// A pool of at most `threads` threads, which come on demand.
    pub fn new(threads: usize, keep_alive: Duration) -> BlockingPool {
        BlockingPool(Pool::new(threads.max(1), keep_alive, ThreadOptions::default()))
    }

    /// Runs `f` on a thread of the pool, or as soon as one is free. Where no thread can be started at all, the job is
    /// cancelled: `f` is dropped.
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.0.run(Job(Some(f)), &Nothing)
    }

    /// Runs `f` as [`spawn`](BlockingPool::spawn) does, and then `tell` with its output, as
    /// [`Handle::spawn_blocking_and_tell`](super::Handle::spawn_blocking_and_tell) does.
    pub fn spawn_and_tell<F, T, G>(&self, f: F, tell: G) -> JoinHandle<()>
    where
        F: FnOnce() -> T + Send + 'static,
        G: FnOnce(T) + Send + 'static,
    {
        self.0.run(Told(Some((f, tell))), &Nothing)
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingPool").field("threads", &self.0.threads()).finish_non_exhaustive()
    }
}

/// There is no thread for what blocks: the system has none left, or the runtime was shut down.
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

struct Job<F>(Option<F>);

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

/// A job that tells of its output itself.
struct Told<F, G>(Option<(F, G)>);

impl<F, G> Unpin for Told<F, G> {}

impl<F: FnOnce() -> T, T, G: FnOnce(T)> Future for Told<F, G> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some((f, tell)) = self.0.take() else { unreachable!("a job is polled once") };
        let output = f();
        task::job_ends(context.waker());
        tell(output);
        Poll::Ready(())
    }
}

/// What a thread of the pool needs besides the pool: its runtime, if it has one.
trait Surroundings: Clone + Send + 'static {
    /// Runs `body` with the thread belonging to the runtime.
    fn enter(&self, body: impl FnOnce());
}

impl Surroundings for Arc<Shared> {
    fn enter(&self, body: impl FnOnce()) {
        let _entered = context::enter(self);
        body();
    }
}

/// The surroundings of a pool without a runtime.
#[derive(Clone)]
struct Nothing;

impl Surroundings for Nothing {
    fn enter(&self, body: impl FnOnce()) {
        body();
    }
}

/// The threads of one runtime. Shared with them by `Arc`.
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Threads that have done with their job, have yet to tell who waits for it, and then come to the queue: they see
    /// to what is in it, as those that were called. Counted down under the lock.
    returning: AtomicUsize,
    /// How many jobs have come so far: for a thread that lingers, which holds no lock.
    submitted: AtomicUsize,
    /// A job came, or the pool was closed.
    work: Condvar,
    /// A thread left.
    left: Condvar,
    cap: usize,
    keep_alive: Duration,
    options: ThreadOptions,
}

struct State {
    jobs: VecDeque<Runnable>,
    /// That come back to the queue before they leave, or are being started.
    threads: usize,
    /// Also those that have left the queue for good, and are on their way out. For these no job waits.
    present: usize,
    /// In the condvar, and not called.
    idle: usize,
    /// Idle threads that were called and have not noticed yet: they see to what is in the queue.
    called: usize,
    /// Threads that are being started: so do they.
    starting: usize,
    closed: bool,
}

/// How the next thread comes.
enum Summons {
    /// Nobody, or nobody more, is needed.
    None,
    Call,
    Start,
}

impl Pool {
    pub(super) fn new(cap: usize, keep_alive: Duration, options: ThreadOptions) -> Pool {
        let state = State {
            jobs: VecDeque::new(),
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

    /// Runs a job, which is a future that is ready when it is first polled.
    fn run<F>(&self, job: F, shared: &impl Surroundings) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (job, handle) = task::new_job(job);
        self.submit(job, shared);
        handle
    }

    fn submit(&self, job: Runnable, shared: &impl Surroundings) {
        let mut state = unpoisoned(self.0.state.lock());
        if state.closed {
            drop(state);
            drop(job);
            return;
        }
        state.jobs.push_back(job);
        self.0.submitted.fetch_add(1, Relaxed);
        let summons = self.0.summon(&mut state);
        drop(state);
        self.0.fetch(summons, shared);
    }

    pub(super) fn threads(&self) -> usize {
        unpoisoned(self.0.state.lock()).threads
    }

    /// Refuses new jobs and drops those that wait; idle threads leave.
    pub(super) fn close(&self) {
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

    /// Waits for the threads to leave; false if the deadline came first.
    pub(super) fn wait_left(&self, deadline: Option<Instant>) -> bool {
        let state = unpoisoned(self.0.state.lock());
        wait_until(&self.0.left, state, deadline, |state| state.present == 0).present == 0
    }
}

impl State {
    /// Decides who comes for the jobs in the queue, unless somebody does already. A thread is only started where there
    /// are fewer than `cap`. The caller acts on it after unlocking.
    fn summon(&mut self, cap: usize) -> Summons {
        if self.called + self.starting > 0 || self.jobs.is_empty() {
            return Summons::None;
        }
        if self.idle > 0 {
            self.idle -= 1;
            self.called += 1;
            return Summons::Call;
        }
        if self.threads < cap {
            self.threads += 1;
            self.present += 1;
            self.starting += 1;
            return Summons::Start;
        }
        Summons::None
    }
}

impl Inner {
    /// Decides who comes for the jobs in the queue, as [`State::summon`], unless a thread is on its way back.
    fn summon(&self, state: &mut State) -> Summons {
        // Who submits because it was told of a job's end sees that thread here; the task's own word orders the two.
        if self.returning.load(Relaxed) > 0 { Summons::None } else { state.summon(self.cap) }
    }

    fn fetch(self: &Arc<Self>, summons: Summons, shared: &impl Surroundings) {
        match summons {
            Summons::None => {}
            Summons::Call => self.work.notify_one(),
            Summons::Start => {
                let (place, theirs) = (Place { pool: self.clone(), stage: Stage::Starting }, shared.clone());
                // A thread that does not start drops its place.
                let _ = self.options.spawn("blocking", move || place, move |place| place.serve(theirs));
            }
        }
    }

    fn work(self: &Arc<Self>, shared: &impl Surroundings) {
        let mut state = unpoisoned(self.state.lock());
        state.starting -= 1;
        let mut lingers = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let (last, known) = (state.jobs.is_empty(), self.submitted.load(Relaxed));
                let summons = self.summon(&mut state);
                drop(state);
                self.fetch(summons, shared);
                let errand = Errand { pool: self, ended: Cell::new(false) };
                job.run_job(&errand);
                if lingers && last && errand.ended.get() {
                    lingers = self.linger(known);
                }
                state = unpoisoned(self.state.lock());
                drop(errand);
                continue;
            }
            if !state.closed {
                state.idle += 1;
                let since = Instant::now();
                let (relocked, stays) = self.wait(state, since);
                state = relocked;
                if stays {
                    lingers = CAN_LINGER && since.elapsed() < LINGER;
                    continue;
                }
            }
            // Who submits from now on counts on others.
            state.threads -= 1;
            return;
        }
    }

    /// Looks for a job beyond those that are `known` for a moment, counted as on its way back. False if none came.
    fn linger(&self, known: usize) -> bool {
        let since = Instant::now();
        while self.submitted.load(Relaxed) == known {
            if since.elapsed() >= LINGER {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Waits, counted as idle, to be called. False if nobody called in time, or the pool was closed.
    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, since: Instant) -> (MutexGuard<'a, State>, bool) {
        let until = since.checked_add(self.keep_alive);
        loop {
            if state.called > 0 {
                // Whichever of the waiting threads is first is the one that was called.
                state.called -= 1;
                return (state, true);
            }
            let left = until.map_or(self.keep_alive, |until| until.saturating_duration_since(Instant::now()));
            if state.closed || left.is_zero() {
                state.idle -= 1;
                return (state, false);
            }
            state = unpoisoned(self.work.wait_timeout(state, left)).0;
        }
    }
}

/// A thread and the job that it runs.
pub(super) struct Errand<'a> {
    pool: &'a Inner,
    ended: Cell<bool>,
}

impl Errand<'_> {
    /// The job has its output, and who waits for it is told next, by something that neither blocks nor runs user code.
    ///
    /// Who waits often submits the next job at once, before this thread is back at the queue. It would wake a second
    /// thread for what the first then takes; the two would go on in turns, each woken for nothing.
    pub(super) fn ends(&self) {
        if !self.ended.replace(true) {
            self.pool.returning.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Errand<'_> {
    fn drop(&mut self) {
        if self.ended.get() {
            self.pool.returning.fetch_sub(1, Relaxed);
        }
    }
}

/// A thread's place among those that are present, given back when dropped: also where a hook of the thread panics, or
/// the thread is not even started.
struct Place {
    pool: Arc<Inner>,
    stage: Stage,
}

/// What a thread is still counted as, besides being present.
enum Stage {
    /// Among `State::starting`, and `State::threads`.
    Starting,
    /// Among `State::threads`.
    Serving,
    Leaving,
}

impl Place {
    /// The life of a thread, which leaves its place as the very last.
    fn serve(mut self, shared: impl Surroundings) -> Place {
        self.stage = Stage::Serving;
        shared.enter(|| self.pool.work(&shared));
        self.stage = Stage::Leaving;
        // The runtime may end here, if this was its last reference: not under the lock.
        drop(shared);
        self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = unpoisoned(self.pool.state.lock());
        state.present -= 1;
        let (mut call, mut stranded) = (false, VecDeque::new());
        if !matches!(self.stage, Stage::Leaving) {
            // It did not come for jobs that count on it.
            state.threads -= 1;
            state.starting -= usize::from(matches!(self.stage, Stage::Starting));
            if state.threads == 0 {
                // For the next the system may have no thread either, and nobody would tell.
                stranded = std::mem::take(&mut state.jobs);
            } else {
                // A thread that is busy comes to them; one that sleeps, when it is called.
                call = matches!(state.summon(0), Summons::Call);
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

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use super::super::block_on;
    use super::*;

    #[test]
    fn no_thread_is_sent_for_while_one_is_on_its_way_back() {
        let pool = BlockingPool::new(2, Duration::from_secs(60));
        let returning = Errand { pool: &pool.0.0, ended: Cell::new(false) };
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
#[path = "blocking_model.rs"]
mod model;
