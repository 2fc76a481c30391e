//! Tasks that never leave their thread: for futures that are not `Send`.
//!
//! A [`LocalSet`] is an executor inside a future: [`LocalSet::run_until`] polls its tasks on the thread that
//! polls it. That is always the same thread, because neither is `Send`. Its tasks are ordinary tasks (one
//! allocation, `JoinHandle`, abort, panics) that belong to the set. Wakers may be used on any thread: they only
//! queue the task's `Runnable`. Only the set's thread polls or drops the future.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::pin;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::super::macros::opaque_debug;
use super::super::shim::{AtomicBool, Mutex, thread, thread_cell};
use super::super::task::{self, Header, Home, HomeKind, JoinHandle, Runnable};
use super::super::wakers::{self, wake_all};
use super::super::{clock, context, coop};
use super::owned::Owned;
use crate::poison::unpoisoned;

/// Polls in a row before the set yields to the thread's other futures and to the driver.
const TURNS: usize = 61;

thread_cell! {
    /// The set whose `run_until` is being polled.
    static CURRENT: *const LocalShared = ptr::null();
}

/// A group of tasks that run on one thread and need not be `Send`.
///
/// ```
/// use std::{cell::Cell, rc::Rc};
/// use wakeloop::runtime::{LocalSet, Runtime, spawn_local, yield_now};
///
/// let rt = Runtime::new()?;
/// let local = LocalSet::new();
/// rt.block_on(local.run_until(async {
///     let shared = Rc::new(Cell::new(0));
///     let theirs = shared.clone();
///     spawn_local(async move {
///         yield_now().await;
///         theirs.set(7);
///     })
///     .await
///     .unwrap();
///     assert_eq!(shared.get(), 7);
/// }));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Tasks are polled only while a `run_until` of the set is awaited. Dropping the set cancels the remaining
/// ones.
pub struct LocalSet {
    shared: Arc<LocalShared>,
    not_send: PhantomData<*const ()>,
}

/// The part of a set that wakers reach from any thread.
pub(super) struct LocalShared {
    owned: Owned,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Runnable>,
    /// The `run_until` calls that wait, nearly always one. The first wake takes them all.
    waiting: Vec<Arc<Root>>,
}

impl LocalSet {
    /// Creates an empty set for the current thread.
    pub fn new() -> LocalSet {
        let shared = LocalShared { owned: Owned::new(1), queue: Mutex::new(Queue::default()) };
        LocalSet { shared: Arc::new(shared), not_send: PhantomData }
    }

    /// Starts a task in this set.
    pub fn spawn_local<F: Future<Output: 'static> + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        spawn_in(&self.shared, future)
    }

    /// Runs `future`, and the tasks of the set with it, until `future` is ready.
    ///
    /// Unfinished tasks stay in the set, for another `run_until`. Several calls at a time (joined in one task)
    /// share the work.
    pub async fn run_until<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let root = Arc::new(Root { woken: AtomicBool::new(true), waker: Mutex::new(None) });
        let waker = Waker::from(root.clone());
        let waiting = WaitingRun { shared: &self.shared, root: root.clone() };
        poll_fn(move |cx| {
            let _entered = EnteredSet::new(&self.shared);
            // This comes first, so that no later wake is missed.
            root.listen(cx);
            waiting.begin();
            // Ordering: Acquire pairs with the Release in `wake`: the poll sees what came before the wake.
            if root.woken.swap(false, Acquire)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Poll::Ready(output);
            }
            self.shared.run_some();
            Poll::Pending
        })
        .await
    }
}

impl Default for LocalSet {
    fn default() -> LocalSet {
        LocalSet::new()
    }
}

impl Drop for LocalSet {
    fn drop(&mut self) {
        let _entered = EnteredSet::new(&self.shared);
        self.shared.owned.close(drop);
        loop {
            while let Some(task) = self.shared.pop() {
                drop(task);
            }
            if self.shared.owned.is_empty() {
                return;
            }
            // Another thread is between waking a task and queueing it.
            thread::sleep(Duration::from_micros(20));
        }
    }
}

opaque_debug! { "LocalSet" [] LocalSet; }

/// Starts a task in the set whose [`LocalSet::run_until`] the caller is in.
///
/// # Panics
/// If no `run_until` is being polled on this thread.
pub fn spawn_local<F: Future<Output: 'static> + 'static>(future: F) -> JoinHandle<F::Output> {
    // SAFETY: set exactly while an `EnteredSet` further up this stack borrows the `Arc`.
    let shared = unsafe {
        let current = CURRENT.get();
        assert!(!current.is_null(), "spawn_local needs a LocalSet: call it inside run_until");
        Arc::increment_strong_count(current);
        Arc::from_raw(current)
    };
    spawn_in(&shared, future)
}

fn spawn_in<F: Future<Output: 'static> + 'static>(
    shared: &Arc<LocalShared>,
    future: F,
) -> JoinHandle<F::Output> {
    // SAFETY: only this set polls and drops it, on its own thread: `run_some` and the drop of the set need a
    // `LocalSet`, or an `EnteredSet` on its thread, and neither is `Send`.
    let (task, handle) = unsafe { task::new_local(future, Arc::as_ptr(shared)) };
    if let Ok(task) = shared.owned.insert(task, 0) {
        shared.push(task);
    }
    handle
}

impl LocalShared {
    fn push(&self, task: Runnable) {
        let mut queue = unpoisoned(self.queue.lock());
        queue.tasks.push_back(task);
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        wake_all(waiting.iter().filter_map(|root| root.task()));
    }

    fn pop(&self) -> Option<Runnable> {
        unpoisoned(self.queue.lock()).tasks.pop_front()
    }

    /// Polls a number of tasks, on the set's thread.
    fn run_some(&self) {
        if clock::may_be_simulated()
            && let Some(task) = self.draw()
        {
            // One at a time, so that others may run between any two.
            coop::in_own_turn(|| task.run());
            return self.continue_later();
        }
        for _ in 0..TURNS {
            let Some(task) = self.pop() else { return };
            coop::in_own_turn(|| task.run());
        }
        self.continue_later();
    }

    /// Takes the next task as the seed of the thread's runtime says, if it has one.
    #[cold]
    fn draw(&self) -> Option<Runnable> {
        let mut queue = unpoisoned(self.queue.lock());
        let count = queue.tasks.len();
        if count == 0 {
            return None;
        }
        let drawn = context::try_with(|shared| shared.simulation()?.draw(count)).flatten();
        queue.tasks.remove(drawn?)
    }

    /// If tasks are left, wakes `run_until` to be polled again.
    fn continue_later(&self) {
        let mut queue = unpoisoned(self.queue.lock());
        let waiting = if queue.tasks.is_empty() { Vec::new() } else { std::mem::take(&mut queue.waiting) };
        drop(queue);
        wake_all(waiting.iter().filter_map(|root| root.task()));
    }
}

impl Home for LocalShared {
    const KIND: HomeKind = HomeKind::Local;

    unsafe fn schedule(this: *const LocalShared, task: Runnable) {
        // SAFETY: until the task is complete the set waits for it, so the set is alive. Our own `Arc` keeps it
        // alive during the push.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this).push(task);
        }
    }

    unsafe fn remove(this: *const LocalShared, task: NonNull<Header>) {
        // SAFETY: by contract, the set lives and has the task in its list.
        unsafe { (*this).owned.remove(task) }
    }
}

/// A `run_until` that enters the list of waiting ones when it waits. It leaves the list when dropped.
struct WaitingRun<'a> {
    shared: &'a LocalShared,
    root: Arc<Root>,
}

impl WaitingRun<'_> {
    fn begin(&self) {
        let mut queue = unpoisoned(self.shared.queue.lock());
        if !queue.waiting.iter().any(|root| Arc::ptr_eq(root, &self.root)) {
            queue.waiting.push(self.root.clone());
        }
    }
}

impl Drop for WaitingRun<'_> {
    fn drop(&mut self) {
        // Our own reference keeps the root alive, so no waker is dropped under the lock.
        unpoisoned(self.shared.queue.lock()).waiting.retain(|root| !Arc::ptr_eq(root, &self.root));
    }
}

/// The waker of the future in `run_until`, which must not be polled at each wake of a task.
struct Root {
    woken: AtomicBool,
    /// The waker of the task that polls `run_until`.
    waker: Mutex<Option<Waker>>,
}

impl Root {
    fn listen(&self, cx: &Context<'_>) {
        let mut slot = unpoisoned(self.waker.lock());
        let replaced = wakers::store(&mut slot, cx.waker());
        drop(slot);
        drop(replaced);
    }

    fn task(&self) -> Option<Waker> {
        unpoisoned(self.waker.lock()).clone()
    }
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Ordering: Release passes what came before the wake to the poll.
        if !self.woken.swap(true, Release)
            && let Some(waker) = self.task()
        {
            waker.wake();
        }
    }
}

/// While this lives, `spawn_local` finds the set.
struct EnteredSet<'a> {
    outer: *const LocalShared,
    set: PhantomData<&'a Arc<LocalShared>>,
}

impl<'a> EnteredSet<'a> {
    fn new(set: &'a Arc<LocalShared>) -> EnteredSet<'a> {
        EnteredSet { outer: CURRENT.replace(Arc::as_ptr(set)), set: PhantomData }
    }
}

impl Drop for EnteredSet<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}
