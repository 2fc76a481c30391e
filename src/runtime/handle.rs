//! The handles that users of a runtime hold.

use std::fmt;
use std::future::Future;
#[cfg(feature = "python")]
use std::io;
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::block_on::block_on;
use super::blocking::{Job, Notifying};
use super::context;
use super::entered;
use super::executor::{CurrentThread, Shared, current_worker};
use super::metrics::Metrics;
use super::shim::thread;
use super::task::JoinHandle;

/// A running runtime. Dropping it ends it: all futures are dropped, its workers are joined, and the threads of
/// its blocking pool finish their jobs.
///
/// The drop waits for polls and blocking jobs that are under way. To limit the wait, use
/// [`Runtime::shutdown_timeout`]; to leave it running until the process ends, `std::mem::forget` it.
///
/// On one of the runtime's own threads the drop cannot wait. Inside a task of any runtime it does not wait
/// either: that would hold up the other tasks of that worker, and the runtime may be waiting for one of them.
/// In both cases the drop only starts the shutdown, and the runtime ends soon after. (tokio panics there.)
pub struct Runtime {
    handle: Handle,
    /// The shutdown has begun, so the drop does not begin it again.
    over: bool,
}

impl Runtime {
    pub(super) fn new_parts(shared: Arc<Shared>, current_thread: Option<Arc<CurrentThread>>) -> Runtime {
        Runtime { handle: Handle { shared, current_thread }, over: false }
    }

    pub(super) fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.handle.shared)
    }

    /// Returns a handle, which is cheap to clone and may be used on any thread.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// As [`Handle::block_on`].
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    /// As [`Handle::spawn`].
    pub fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(
        &self,
        future: F,
    ) -> JoinHandle<F::Output> {
        self.handle.spawn(future)
    }

    /// As [`Handle::spawn_blocking`].
    pub fn spawn_blocking<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.handle.spawn_blocking(f)
    }

    /// As [`Handle::enter`].
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        self.handle.enter(f)
    }

    /// As [`Handle::metrics`].
    pub fn metrics(&self) -> Metrics {
        self.handle.metrics()
    }

    /// Ends the runtime, and waits at most `limit` for polls and blocking jobs that are under way. Returns true
    /// if all threads ended. Otherwise they end when their current call returns, and the remaining tasks are
    /// dropped then.
    ///
    /// This blocks the thread, also in a task of another runtime, unless the limit is zero. On one of the
    /// runtime's own threads it cannot wait and returns false.
    pub fn shutdown_timeout(mut self, limit: Duration) -> bool {
        self.shut_down(Instant::now().checked_add(limit))
    }

    fn shut_down(&mut self, deadline: Option<Instant>) -> bool {
        self.over = true;
        let shared = &self.handle.shared;
        shared.close();
        if let Some(current_thread) = &self.handle.current_thread {
            current_thread.close();
        }
        let threads = shared.threads.take_handles();
        if self.on_own_thread() || (deadline.is_none() && on_worker()) {
            return false;
        }
        // A worker that panicked has printed that to stderr, so the error of `join` is ignored.
        let join =
            |threads: Vec<thread::JoinHandle<()>>| threads.into_iter().for_each(|one| drop(one.join()));
        if deadline.is_none() {
            // Joining comes first here: then no thread has to notify the condvar when it leaves.
            join(threads);
            return shared.threads.wait_left(None) && shared.pool.wait_left(None);
        }
        let ended = shared.threads.wait_left(deadline) && shared.pool.wait_left(deadline);
        if ended {
            join(threads);
        }
        ended
    }

    fn on_own_thread(&self) -> bool {
        let own = Arc::as_ptr(&self.handle.shared);
        // SAFETY: the reference is only compared with None.
        unsafe { current_worker(own) }.is_some()
            || context::try_with(|shared| ptr::eq(Arc::as_ptr(shared), own)).unwrap_or(false)
    }
}

/// Whether the current thread is running a worker's task, of any runtime.
fn on_worker() -> bool {
    // SAFETY: the reference is only compared with None.
    unsafe { current_worker(ptr::null()) }.is_some()
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.over {
            self.shut_down(None);
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("workers", &self.handle.shared.workers()).finish_non_exhaustive()
    }
}

/// Spawns tasks on a runtime and reads its state, from any thread, also after it has ended.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    current_thread: Option<Arc<CurrentThread>>,
}

impl Handle {
    /// Starts a task. It runs whether or not its handle is awaited.
    ///
    /// From a worker of this runtime the task stays with that worker until another one steals it. From
    /// elsewhere it goes to whichever worker comes first. If the runtime was shut down, the task is cancelled
    /// at once.
    pub fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(
        &self,
        future: F,
    ) -> JoinHandle<F::Output> {
        self.shared.spawn(future)
    }

    /// As [`Handle::spawn`], but the first poll happens on the calling thread before this returns. Use it for
    /// futures with a short poll that are often ready at once. Later polls happen on workers.
    pub fn spawn_here<F: Future<Output: Send + 'static> + Send + 'static>(
        &self,
        future: F,
    ) -> JoinHandle<F::Output> {
        self.shared.spawn_here(future)
    }

    /// Runs `f` on a thread where blocking is allowed. See [`spawn_blocking`](super::spawn_blocking).
    pub fn spawn_blocking<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.shared.pool.run(Job(Some(f)), &self.shared)
    }

    /// Runs `f` on a thread where blocking is allowed, then calls `notify` with its output. It is for callers
    /// that do not await the handle, such as a loop with a queue of its own. If the job is cancelled or `f`
    /// panics, `notify` is dropped.
    ///
    /// `notify` must not block, nor wait for another job: jobs submitted meanwhile may count on this very
    /// thread, which is about to be free.
    pub fn spawn_blocking_and_notify<F, T, G>(&self, f: F, notify: G) -> JoinHandle<()>
    where
        F: FnOnce() -> T + Send + 'static,
        G: FnOnce(T) + Send + 'static,
    {
        self.shared.pool.run(Notifying(Some((f, notify))), &self.shared)
    }

    /// Runs `future` on this thread until it is ready; sleeps, sockets and [`spawn`] inside use this runtime.
    ///
    /// # Panics
    /// If the thread is itself a worker, because it would sleep with tasks in its queue; and if the future
    /// panics.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(!on_worker(), "block_on inside a task would block its worker: await the future instead");
        let _entered = entered::enter(&self.shared);
        match &self.current_thread {
            Some(current_thread) => current_thread.block_on(&self.shared, future),
            None => block_on(future),
        }
    }

    /// Calls `f` on this thread as if it were one of the runtime's: sockets made in it, and [`spawn`], use this
    /// runtime.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let _entered = entered::enter(&self.shared);
        f()
    }

    /// Opens the driver, for callers that want an error now, rather than at the first timer, if no descriptor
    /// is left.
    #[cfg(feature = "python")]
    pub(crate) fn open_driver(&self) -> io::Result<()> {
        self.shared.open_driver().map(drop)
    }

    /// Returns the runtime's counters.
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics()
    }

    /// As [`Handle::try_current`].
    ///
    /// # Panics
    /// If the thread belongs to no runtime.
    pub fn current() -> Handle {
        Handle::try_current().unwrap_or_else(|| context::missing())
    }

    /// Returns the handle of the runtime that the current thread belongs to: that of the worker or the blocking
    /// job, or of the innermost `block_on`.
    pub fn try_current() -> Option<Handle> {
        context::try_with(|shared| Handle {
            shared: shared.clone(),
            current_thread: CurrentThread::of(shared),
        })
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("workers", &self.shared.workers()).finish_non_exhaustive()
    }
}

/// Starts a task on the runtime of the current thread. See [`Handle::spawn`].
///
/// # Panics
/// If the thread belongs to no runtime.
pub fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(future: F) -> JoinHandle<F::Output> {
    context::with(|shared| shared.spawn(future))
}
