//! A set of tasks that are awaited together.
//!
//! Each task is a `JoinHandle` in a slab. There may be thousands, so a poll of the set must not poll them all.
//! Each handle is polled once, when it is inserted, and gets a waker of its own. That waker adds the handle's
//! place to the list of ended tasks, and wakes the task that waits for the set.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use slab::Slab;

use super::handle::{Handle, spawn};
use super::shim::{Mutex, MutexGuard};
use super::task::{AbortHandle, JoinError, JoinHandle};
use super::{coop, wakers};
use crate::poison::unpoisoned;

/// A group of tasks. Their outputs come in the order in which they end. Dropping the set aborts the remaining
/// ones; [`JoinSet::detach_all`] lets them run on.
///
/// ```
/// use wakeloop::runtime::{JoinSet, Runtime, yield_now};
///
/// let rt = Runtime::new()?;
/// let sum = rt.block_on(async {
///     let mut tasks = JoinSet::new();
///     for n in 0..10 {
///         tasks.spawn(async move {
///             yield_now().await;
///             n
///         });
///     }
///     let mut sum = 0;
///     while let Some(ended) = tasks.join_next().await {
///         sum += ended.unwrap();
///     }
///     sum
/// });
/// assert_eq!(sum, 45);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct JoinSet<T> {
    tasks: Slab<Member<T>>,
    ended: Arc<Ended>,
}

struct Member<T> {
    handle: JoinHandle<T>,
    /// Set if the task had ended when it was inserted.
    output: Option<Result<T, JoinError>>,
    waker: Waker,
}

/// The state that the handles' wakers share with the set.
#[derive(Default)]
struct Ended(Mutex<SetState>);

#[derive(Default)]
struct SetState {
    /// Places of ended tasks, in the order of their ends. A place that is empty by now, or reused, does no
    /// harm.
    places: VecDeque<usize>,
    /// The task that waits for the set.
    waiting: Option<Waker>,
}

/// The waker of one handle.
struct TaskPlace {
    ended: Arc<Ended>,
    place: usize,
}

impl Wake for TaskPlace {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ended.note(self.place);
    }
}

impl Ended {
    fn note(&self, place: usize) {
        let mut state = self.lock();
        state.places.push_back(place);
        let waiting = state.waiting.take();
        drop(state);
        wakers::wake(waiting);
    }

    fn lock(&self) -> MutexGuard<'_, SetState> {
        unpoisoned(self.0.lock())
    }
}

impl<T> Member<T> {
    /// Polls the handle. If the task has not ended, the handle keeps the waker.
    fn poll(&mut self) -> Poll<Result<T, JoinError>> {
        if let Some(output) = self.output.take() {
            return Poll::Ready(output);
        }
        let mut cx = Context::from_waker(&self.waker);
        // This does not spend the caller's budget, which is spent per output: a handle that found no budget
        // would have to be polled again.
        coop::in_own_turn(|| Pin::new(&mut self.handle).poll(&mut cx))
    }
}

impl<T> JoinSet<T> {
    /// Creates an empty set.
    pub fn new() -> JoinSet<T> {
        JoinSet { tasks: Slab::new(), ended: Arc::default() }
    }

    /// The number of tasks in the set: running ones, and those whose output was not taken.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether no task is in the set.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Starts a task on the runtime of the current thread.
    ///
    /// # Panics
    /// If the thread belongs to no runtime.
    pub fn spawn<F: Future<Output = T> + Send + 'static>(&mut self, future: F) -> AbortHandle
    where
        T: Send + 'static,
    {
        self.insert(spawn(future))
    }

    /// Starts a task on a runtime.
    pub fn spawn_on<F>(&mut self, future: F, runtime: &Handle) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.insert(runtime.spawn(future))
    }

    /// Adds a task that was started elsewhere: a local one, or a blocking job.
    pub fn insert(&mut self, handle: JoinHandle<T>) -> AbortHandle {
        let abort = handle.abort_handle();
        let entry = self.tasks.vacant_entry();
        let place = entry.key();
        let waker = Waker::from(Arc::new(TaskPlace { ended: self.ended.clone(), place }));
        let member = entry.insert(Member { handle, output: None, waker });
        if let Poll::Ready(output) = member.poll() {
            member.output = Some(output);
            self.ended.note(place);
        }
        abort
    }

    /// Returns the next output, in the order in which the tasks end; `None` if no task is left. Cancel-safe: a
    /// task stays in the set until its output is returned.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| coop::spend(cx, |cx| self.poll_ended(cx))).await
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        if self.tasks.is_empty() {
            return Poll::Ready(None);
        }
        loop {
            let mut state = self.ended.lock();
            let Some(place) = state.places.pop_front() else {
                let replaced = wakers::store(&mut state.waiting, cx.waker());
                drop(state);
                drop(replaced);
                return Poll::Pending;
            };
            drop(state);
            if let Some(output) = self.take(place) {
                return Poll::Ready(Some(output));
            }
        }
    }

    /// Takes the output of a task in the list of ended ones, if it has ended.
    fn take(&mut self, place: usize) -> Option<Result<T, JoinError>> {
        let Poll::Ready(output) = self.tasks.get_mut(place)?.poll() else { return None };
        self.tasks.remove(place);
        Some(output)
    }

    /// Returns the output of an ended task, without waiting.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        loop {
            let place = self.ended.lock().places.pop_front()?;
            if let Some(output) = self.take(place) {
                return Some(output);
            }
        }
    }

    /// Asks all tasks to stop. They stay in the set until [`JoinSet::join_next`] has returned that they were
    /// cancelled.
    pub fn abort_all(&mut self) {
        self.tasks.iter().for_each(|(_, member)| member.handle.abort());
    }

    /// Asks all tasks to stop, and waits until they have. Their outputs and panics are dropped. If this future
    /// is dropped early, the tasks that have not ended stay in the set.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Removes all tasks from the set and lets them run on.
    pub fn detach_all(&mut self) {
        let tasks = mem::take(&mut self.tasks);
        self.ended.lock().places.clear();
        drop(tasks);
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.abort_all();
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet").field("len", &self.len()).finish_non_exhaustive()
    }
}
