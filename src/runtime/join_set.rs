//! Tasks that are waited for together.
//!
//! Each task is a `JoinHandle` in a slab. A poll of the set must not poll all of them, of which there may be thousands:
//! each handle is polled once, when it comes into the set, and leaves a waker of its own there; that puts its place into
//! the list of those that have ended, and then wakes whoever waits for the set.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use slab::Slab;

use super::shim::{Mutex, MutexGuard};
use super::task::{AbortHandle, JoinError, JoinHandle};
use super::{Handle, coop, spawn, unpoisoned, wakers};

/// A group of tasks: their outputs come in the order in which they end, and dropping the set aborts those that are left.
/// ([`JoinSet::detach_all`] lets them go on.)
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
    /// It had ended when it came into the set.
    output: Option<Result<T, JoinError>>,
    waker: Waker,
}

/// What the wakers of the handles share with the set.
struct Ended {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Places of tasks that have ended, in that order. One that is empty by now, or another's, does no harm.
    places: VecDeque<usize>,
    /// Who waits for the set.
    waiting: Option<Waker>,
}

/// The waker of one handle.
struct Place {
    ended: Arc<Ended>,
    place: usize,
}

impl Wake for Place {
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
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }
}

impl<T> Member<T> {
    /// Polls the handle, which leaves the waker there if the task has not ended.
    fn poll(&mut self) -> Poll<Result<T, JoinError>> {
        if let Some(output) = self.output.take() {
            return Poll::Ready(output);
        }
        let mut cx = Context::from_waker(&self.waker);
        // Not on the budget of whoever has the set, who spends a unit on each output: a handle that is put off would have
        // to be asked again.
        coop::in_own_turn(|| Pin::new(&mut self.handle).poll(&mut cx))
    }
}

impl<T> JoinSet<T> {
    /// No tasks.
    pub fn new() -> JoinSet<T> {
        JoinSet { tasks: Slab::new(), ended: Arc::new(Ended { state: Mutex::new(State::default()) }) }
    }

    /// How many tasks are in the set: those that run and those whose output nobody has taken.
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
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
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

    /// Takes in a task that was started elsewhere: a local one, or a blocking job.
    pub fn insert(&mut self, handle: JoinHandle<T>) -> AbortHandle {
        let abort = handle.abort_handle();
        let entry = self.tasks.vacant_entry();
        let place = entry.key();
        let waker = Waker::from(Arc::new(Place { ended: self.ended.clone(), place }));
        let member = entry.insert(Member { handle, output: None, waker });
        if let Poll::Ready(output) = member.poll() {
            member.output = Some(output);
            self.ended.note(place);
        }
        abort
    }

    /// The output of the task that ended first, of those whose output nobody has taken; `None` if no task is left.
    /// Cancel-safe: a task stays in the set until its output is handed out.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    /// As [`JoinSet::join_next`], for hand-written futures.
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        coop::spend(cx, |cx| self.poll_ended(cx))
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

    /// The output of one that is said to have ended, if it has.
    fn take(&mut self, place: usize) -> Option<Result<T, JoinError>> {
        let Poll::Ready(output) = self.tasks.get_mut(place)?.poll() else { return None };
        self.tasks.remove(place);
        Some(output)
    }

    /// The output of a task that has ended, without waiting.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        loop {
            let place = self.ended.lock().places.pop_front()?;
            if let Some(output) = self.take(place) {
                return Some(output);
            }
        }
    }

    /// Asks all tasks to stop. They stay in the set until [`JoinSet::join_next`] has said that they were cancelled.
    pub fn abort_all(&mut self) {
        self.tasks.iter().for_each(|(_, member)| member.handle.abort());
    }

    /// Asks all tasks to stop and waits until they have. Their outputs, and panics, are dropped. Dropped before it is
    /// ready, it leaves those in the set that have not ended yet.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Lets all tasks run on by themselves.
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
