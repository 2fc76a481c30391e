//! The inbox of a loop: threads without the GIL push messages here, and wake the loop if it is parked.
//!
//! Worker threads of the runtime hold no GIL, so they send completions as messages. Python callers of
//! `call_soon_threadsafe` hold the GIL. They push into the ready queue, which keeps one order with `call_soon`, and use
//! only [`Inbox::wake`].
//!
//! **No wake-up is lost.** The loop stores `PARKED`, and then checks once more for messages. A sender pushes its
//! message first, and then swaps in `AWAKE`. Both are sequentially consistent read-modify-writes of one word. So either
//! the loop's check comes after the push and finds the message, or the sender's swap comes after the loop's, sees
//! `PARKED` and writes to the eventfd. Only the first message of a burst writes.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use pyo3::Python;

use crate::capi::Fatal;
use crate::reactor::Waker;

const AWAKE: u8 = 0;
const PARKED: u8 = 1;

/// A closure that another thread sends to the loop. It runs on the loop's thread, with the GIL held.
pub(crate) type Message = Box<dyn FnOnce(Python<'_>) -> Result<(), Fatal> + Send>;

/// The inbox, shared by a loop and all threads that may wake it. It may outlive the loop.
pub(crate) struct Inbox {
    state: AtomicU8,
    /// True while `messages` is not empty, so that the loop takes the lock only then.
    filled: AtomicBool,
    /// `None` once the loop is closed. It would never run the messages, and they may hold references to it.
    messages: Mutex<Option<Vec<Message>>>,
    /// `None` once the loop is closed: the waker's descriptor must not outlive the poller.
    waker: Mutex<Option<Waker>>,
    /// The number of awaited jobs whose threads need the GIL; see `gil_fairness`.
    jobs: AtomicU32,
    /// The number of name lookups of this loop.
    lookups: AtomicU32,
}

/// A name lookup of a loop, until its result is delivered.
pub(crate) struct Lookup(Arc<Inbox>);

impl Lookup {
    pub(crate) fn of(inbox: &Arc<Inbox>) -> Lookup {
        // Relaxed, as for `jobs`.
        inbox.lookups.fetch_add(1, Ordering::Relaxed);
        Lookup(inbox.clone())
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        self.0.lookups.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Inbox {
        Inbox {
            state: AtomicU8::new(AWAKE),
            filled: AtomicBool::new(false),
            messages: Mutex::new(Some(Vec::new())),
            waker: Mutex::new(Some(waker)),
            jobs: AtomicU32::new(0),
            lookups: AtomicU32::new(0),
        }
    }

    /// Pushes a message, and wakes the loop if it is parked. Needs no GIL. Blocks only while another thread pushes or
    /// takes messages. If the loop is closed, the message is dropped.
    pub(crate) fn send(&self, message: Message) {
        {
            let mut messages = lock(&self.messages);
            let Some(messages) = &mut *messages else { return };
            messages.push(message);
            // Ordering: Release, pairs with the Acquire swap in `take_filled`. The lock is still held, so that
            // `take_filled` cannot clear the flag between the push and this store.
            self.filled.store(true, Ordering::Release);
        }
        self.wake();
    }

    /// Wakes the loop if it is parked.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        // Ordering: SeqCst, pairs with the swap in `park`: see the head of this file.
        if self.state.swap(AWAKE, Ordering::SeqCst) == PARKED
            && let Some(waker) = &*lock(&self.waker)
        {
            // It fails only if the poller is closed, and then no thread waits in it.
            let _ = waker.wake();
        }
    }

    /// Is the loop closed? Then messages are dropped.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.messages).is_none()
    }

    /// Are both locks free?
    pub(crate) fn is_unlocked(&self) -> bool {
        let held = [
            matches!(self.messages.try_lock(), Err(TryLockError::WouldBlock)),
            matches!(self.waker.try_lock(), Err(TryLockError::WouldBlock)),
        ];
        held == [false; 2]
    }

    /// Prepares the inbox for a forked child that takes over the loop, with the waker of its new poller. Messages to
    /// the parent are dropped.
    pub(crate) fn reset_after_fork(&self, waker: Waker) {
        self.unpark();
        let messages = lock(&self.messages).as_mut().map(std::mem::take);
        let old = lock(&self.waker).replace(waker);
        // Relaxed: a forked child has one thread.
        self.filled.store(false, Ordering::Relaxed);
        drop((messages, old));
    }

    /// The loop is closed, and no thread waits in its poller.
    pub(crate) fn close(&self) {
        let (waker, messages) = (lock(&self.waker).take(), lock(&self.messages).take());
        drop((waker, messages));
    }

    /// The loop is about to block. Returns false if there is a message; then it must not block.
    pub(crate) fn park(&self) -> bool {
        // Ordering: SeqCst, pairs with the swap in `wake`: see the head of this file.
        self.state.swap(PARKED, Ordering::SeqCst);
        // Ordering: SeqCst load after the swap above; pairs with the store in `send`, which is followed by
        // the SeqCst swap in `wake`.
        if self.filled.load(Ordering::SeqCst) {
            self.unpark();
            return false;
        }
        true
    }

    /// Parks an embedded loop between two turns. The foreign main loop waits until the poller's descriptor is readable.
    /// If there is a message, or if the loop has other work (`left`), that is at once.
    pub(crate) fn park_embedded(&self, left: bool) {
        // Ordering: SeqCst, both, for the reasons given in `park`.
        self.state.swap(PARKED, Ordering::SeqCst);
        if left || self.filled.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The loop no longer blocks.
    pub(crate) fn unpark(&self) {
        // Relaxed: only senders read it, and one that still sees PARKED only causes an unnecessary wake-up.
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// Counts a job whose thread needs the GIL.
    pub(crate) fn await_job(&self) {
        // Relaxed in all three methods: the number is a hint, and publishes no other memory.
        self.jobs.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the count of a job that is done, or no longer awaited.
    pub(crate) fn end_job(&self) {
        self.jobs.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn awaits_jobs(&self) -> bool {
        self.jobs() > 0
    }

    pub(crate) fn jobs(&self) -> u32 {
        self.jobs.load(Ordering::Relaxed)
    }

    pub(crate) fn lookups(&self) -> u32 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Takes all messages, in order.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Vec<Message>> {
        // Relaxed: a message that is missed here is taken in the next turn, and `park` checks again before the loop
        // blocks.
        if self.filled.load(Ordering::Relaxed) { self.take_filled() } else { None }
    }

    #[inline(never)]
    fn take_filled(&self) -> Option<Vec<Message>> {
        let mut messages = lock(&self.messages);
        // Ordering: Acquire, pairs with the Release store in `send`.
        self.filled.swap(false, Ordering::Acquire);
        messages.as_mut().map(std::mem::take)
    }
}

/// Locks a mutex, even if it is poisoned: pushing to a Vec cannot panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox")
            .field("state", &self.state)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}
