//! How a task comes to the workers: from a spawn, from a wake, and at the end of a poll.

use std::future::Future;
use std::ptr::NonNull;
use std::sync::Arc;

use super::super::entered;
use super::super::task::{self, Header, Home, HomeKind, JoinHandle, Runnable, Sample};
use super::super::trace::TraceEvent;
use super::shared::Shared;
use super::worker::current_worker;

impl Shared {
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
                if let Some(task) = home(self.workers()) {
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
        if let Ok(task) = self.owned.insert(task, self.workers()) {
            let _entered = entered::enter(self);
            task.run();
        }
        handle
    }
}

impl Home for Shared {
    const KIND: HomeKind = HomeKind::Workers;

    /// Queues a woken task: on the current thread's worker, if it belongs to the task's runtime, else in the injector.
    unsafe fn schedule(shared: *const Shared, task: Runnable) {
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

    #[inline(always)]
    unsafe fn reschedule(shared: *const Shared, task: Runnable) {
        // SAFETY: by contract.
        match unsafe { current_worker(shared) } {
            Some(worker) => {
                worker.post_behind(worker.sampler.count(task));
            }
            // SAFETY: by contract.
            None => unsafe { Shared::schedule(shared, task) },
        }
    }

    unsafe fn remove(shared: *const Shared, task: NonNull<Header>) {
        // SAFETY: by contract, the runtime lives and has the task in its list.
        unsafe { (*shared).owned.remove(task) }
    }

    /// The worker of the current thread is about to poll the task of a sample.
    unsafe fn record_delay(shared: *const Shared, sample: Sample) {
        // SAFETY: the reference is given up before this call returns to the worker's loop.
        if let Some(worker) = unsafe { current_worker(shared) } {
            worker.record_delay(sample);
        }
    }

    #[inline(always)]
    unsafe fn trace(shared: *const Shared, task: usize, event: fn(usize) -> TraceEvent) {
        // SAFETY: by contract.
        unsafe { &*shared }.trace(event(task));
    }
}
