//! How threads without the GIL reach a loop: push, then wake the poller, but only if the loop is parked.
//!
//! Python callers of `call_soon_threadsafe` hold the GIL, so they push straight into the ready queue and
//! only use the waking half of this; that also keeps `call_soon` and `call_soon_threadsafe` in one order.
//! Completions of the runtime come from worker threads that hold no GIL and travel through the queue.
//!
//! **No wake-up is lost.** The loop stores `PARKED`, then looks once more whether anything is there; a
//! sender pushes first and swaps in `AWAKE` afterwards. Both are sequentially consistent read-modify-writes
//! on one word: either the loop's look comes after the push and finds it, or the sender's swap comes after
//! the loop's and sees `PARKED`, and then writes the eventfd. A burst pays for one write only.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, TryLockError};

use pyo3::Python;

use crate::capi::Fatal;
use crate::reactor::Waker;

const AWAKE: u8 = 0;
const PARKED: u8 = 1;

/// What a thread without the GIL leaves for the loop; run on the loop thread with the GIL held.
pub(crate) type Message = Box<dyn FnOnce(Python<'_>) -> Result<(), Fatal> + Send>;

/// Shared between a loop and every thread that may have to wake it. Outlives the loop.
pub(crate) struct Inbox {
    state: AtomicU8,
    /// True while `messages` is not empty; spares the loop the lock in every other turn.
    filled: AtomicBool,
    /// Gone once the loop is closed: what a message refers to may hold the loop, which would never run it.
    messages: Mutex<Option<Vec<Message>>>,
    /// Gone once the loop is closed: its descriptor must not outlive the poller.
    waker: Mutex<Option<Waker>>,
    /// Jobs that are awaited, whose threads want the GIL when they begin and when they end.
    jobs: AtomicU32,
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Inbox {
        Inbox {
            state: AtomicU8::new(AWAKE),
            filled: AtomicBool::new(false),
            messages: Mutex::new(Some(Vec::new())),
            waker: Mutex::new(Some(waker)),
            jobs: AtomicU32::new(0),
        }
    }

    /// Leaves a message and wakes the loop if it is parked. Needs no GIL; never blocks for long. A message for
    /// a closed loop is dropped.
    pub(crate) fn send(&self, message: Message) {
        {
            let mut messages = lock(&self.messages);
            let Some(messages) = &mut *messages else { return };
            messages.push(message);
            // Ordering: Release, pairs with the Acquire swap in `take`. Under the lock, so that `take`
            // cannot clear it between our push and this store.
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
            // A failure here means that the poller is gone, and with it the sleeper.
            let _ = waker.wake();
        }
    }

    /// Does no thread hold any of it?
    pub(crate) fn is_free(&self) -> bool {
        let held = [
            matches!(self.messages.try_lock(), Err(TryLockError::WouldBlock)),
            matches!(self.waker.try_lock(), Err(TryLockError::WouldBlock)),
        ];
        held == [false; 2]
    }

    /// The loop is another process's from now on, with another poller. What its parent was sent is not for it.
    pub(crate) fn begin_anew(&self, waker: Waker) {
        self.unpark();
        let messages = lock(&self.messages).as_mut().map(std::mem::take);
        let old = lock(&self.waker).replace(waker);
        // Relaxed: a forked child has one thread.
        self.filled.store(false, Ordering::Relaxed);
        drop((messages, old));
    }

    /// The loop is closed, and no thread sleeps in its poll any more.
    pub(crate) fn close(&self) {
        let (waker, messages) = (lock(&self.waker).take(), lock(&self.messages).take());
        drop((waker, messages));
    }

    /// The loop is about to block. False if something came in: then it must not.
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

    /// The loop is embedded and between two turns: the foreign main loop waits for the poller's descriptor. It becomes
    /// readable at once if there is a message here, or something else `left` to do.
    pub(crate) fn park_embedded(&self, left: bool) {
        // Ordering: SeqCst, both, as in `park`.
        self.state.swap(PARKED, Ordering::SeqCst);
        if left || self.filled.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The loop no longer blocks.
    pub(crate) fn unpark(&self) {
        // Relaxed: only senders read it, and one that still sees PARKED makes a spare wake-up at worst.
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// A job is awaited from now on, which a thread does that needs the GIL.
    pub(crate) fn await_job(&self) {
        // Relaxed, all three: the number is all there is to see.
        self.jobs.fetch_add(1, Ordering::Relaxed);
    }

    /// It is done, or awaited no more.
    pub(crate) fn end_job(&self) {
        self.jobs.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn awaits_jobs(&self) -> bool {
        self.jobs.load(Ordering::Relaxed) > 0
    }

    /// Everything that came in, in order.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Vec<Message>> {
        // Relaxed: a miss is seen in the next turn, and `park` looks again before the loop blocks.
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

/// A sender that panicked left the list whole: pushing to a Vec has no half-way state that matters.
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
