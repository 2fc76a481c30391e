//! The pool for functions that block: threads that come on demand and go when idle.
//!
//! A job is a task whose future runs the function in its first and only poll; so `JoinHandle`, panics and
//! cancellation are those of tasks. Aborting a job that has not begun drops it; one that runs, runs on.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::builder::ThreadOptions;
use super::executor::Shared;
use super::task::{self, JoinHandle, Runnable};
use super::{context, unpoisoned};

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
    // No executor: the job is never woken into a queue, as its only poll completes it.
    let (job, handle) = task::new(Job(Some(f)), ptr::null());
    shared.pool().submit(job, shared);
    handle
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

/// The threads of one runtime. Shared with them by `Arc`.
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
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
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    pub(super) fn new(cap: usize, keep_alive: Duration, options: ThreadOptions) -> Pool {
        let state = State { jobs: VecDeque::new(), threads: 0, idle: 0, closed: false };
        Pool(Arc::new(Inner {
            state: Mutex::new(state),
            work: Condvar::new(),
            left: Condvar::new(),
            cap,
            keep_alive,
            options,
        }))
    }

    fn submit(&self, job: Runnable, shared: &Arc<Shared>) {
        let mut state = unpoisoned(self.0.state.lock());
        if state.closed {
            drop(state);
            drop(job);
            return;
        }
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            drop(state);
            self.0.work.notify_one();
            return;
        }
        if state.threads >= self.0.cap {
            return;
        }
        state.threads += 1;
        drop(state);
        if self.start(shared).is_err() {
            let mut state = unpoisoned(self.0.state.lock());
            state.threads -= 1;
            // Threads that exist will come to it; without any it would wait for ever.
            let stranded = if state.threads == 0 { std::mem::take(&mut state.jobs) } else { VecDeque::new() };
            drop(state);
            drop(stranded);
        }
    }

    fn start(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let (inner, shared) = (self.0.clone(), shared.clone());
        let options = self.0.options.clone();
        options.spawn("blocking", move || inner.work(shared)).map(drop)
    }

    pub(super) fn threads(&self) -> usize {
        unpoisoned(self.0.state.lock()).threads
    }

    /// Refuses new jobs and drops those that wait; idle threads leave.
    pub(super) fn close(&self) {
        let mut state = unpoisoned(self.0.state.lock());
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.0.work.notify_all();
        drop(jobs);
    }

    /// Waits for the threads to leave; false if the deadline came first.
    pub(super) fn wait_left(&self, deadline: Option<Instant>) -> bool {
        let mut state = unpoisoned(self.0.state.lock());
        while state.threads > 0 {
            state = match deadline {
                None => unpoisoned(self.0.left.wait(state)),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    unpoisoned(self.0.left.wait_timeout(state, left)).0
                }
            };
        }
        true
    }
}

impl Inner {
    fn work(self: Arc<Self>, shared: Arc<Shared>) {
        let entered = context::enter(shared);
        let mut state = unpoisoned(self.state.lock());
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job.run();
                state = unpoisoned(self.state.lock());
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let (relocked, waited) = unpoisoned(self.work.wait_timeout(state, self.keep_alive));
            state = relocked;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        drop(state);
        // The runtime may end here, if this was its last reference: not under the lock.
        drop(entered);
        unpoisoned(self.state.lock()).threads -= 1;
        self.left.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}
