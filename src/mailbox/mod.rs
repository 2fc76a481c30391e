//! Messages from any thread to one thread, which may be parked.
//!
//! **No wake-up is lost.** The owner stores `PARKED`, and then checks once more for messages. A sender pushes its message
//! first, and then swaps in `AWAKE`. Both are read-modify-writes of one word, so one comes after the other. Either the
//! owner's is the later one, and its check finds the message. Or the sender's is, sees `PARKED`, and wakes the owner. Only
//! the first message of a burst does so.
//!
//! **No message is kept after the end.** A closed mailbox drops its messages and those that come later, each without a
//! lock, because a message may do anything when it is dropped. It drops the waker too, and uses it no more.

mod shim;
mod side_list;

use std::sync::atomic::Ordering;

use shim::{AtomicBool, AtomicU8, Mutex, lock};
pub(crate) use side_list::SideList;

#[cfg(test)]
#[path = "../../tests/models/mailbox.rs"]
mod model;

const AWAKE: u8 = 0;
const PARKED: u8 = 1;

/// Ends a wait of the owner.
pub(crate) trait Wake {
    fn wake(&self);
}

/// The mailbox, shared by its owner and all threads that may send to it. It may outlive the owner.
pub(crate) struct Mailbox<M, W> {
    state: AtomicU8,
    /// True while `messages` is not empty, so that the owner takes the lock only then.
    filled: AtomicBool,
    /// `None` once it is closed.
    messages: Mutex<Option<Vec<M>>>,
    /// `None` once it is closed.
    waker: Mutex<Option<W>>,
}

impl<M, W: Wake> Mailbox<M, W> {
    pub(crate) fn new(waker: W) -> Mailbox<M, W> {
        Mailbox {
            state: AtomicU8::new(AWAKE),
            filled: AtomicBool::new(false),
            messages: Mutex::new(Some(Vec::new())),
            waker: Mutex::new(Some(waker)),
        }
    }

    /// Pushes a message, and wakes the owner if it is parked. Blocks only while another thread pushes or takes messages.
    /// If the mailbox is closed, the message is dropped.
    pub(crate) fn send(&self, message: M) {
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

    /// Wakes the owner if it is parked.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        // Ordering: SeqCst, pairs with the swap in `park`: see the head of this file.
        if self.state.swap(AWAKE, Ordering::SeqCst) == PARKED
            && let Some(waker) = &*lock(&self.waker)
        {
            waker.wake();
        }
    }

    /// Is it closed? Then messages are dropped.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.messages).is_none()
    }

    /// Closes it. The owner does not wait any more.
    pub(crate) fn close(&self) {
        let (waker, messages) = (lock(&self.waker).take(), lock(&self.messages).take());
        drop((waker, messages));
    }

    /// The owner is about to wait. Returns false if there is a message; then it must not wait.
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

    /// Parks an owner that lets another thread or another loop wait for its waker. If there is a message, or if it has
    /// other work (`left`), the waker is woken at once.
    pub(crate) fn park_embedded(&self, left: bool) {
        // Ordering: SeqCst, both, for the reasons given in `park`.
        self.state.swap(PARKED, Ordering::SeqCst);
        if left || self.filled.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The owner no longer waits.
    pub(crate) fn unpark(&self) {
        // Ordering: Acquire, pairs with the swap in `wake`. A plain store would hide that swap from the next `park`, which
        // reads the last value only: the owner could park although it has not seen what was pushed before the swap.
        self.state.swap(AWAKE, Ordering::Acquire);
    }

    /// Takes all messages, in order.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Vec<M>> {
        // Relaxed: a message that is missed here is taken the next time, and `park` checks again before the owner waits.
        if self.filled.load(Ordering::Relaxed) { self.take_filled() } else { None }
    }

    #[inline(never)]
    fn take_filled(&self) -> Option<Vec<M>> {
        let mut messages = lock(&self.messages);
        // Ordering: Acquire, pairs with the Release store in `send`.
        self.filled.swap(false, Ordering::Acquire);
        messages.as_mut().map(std::mem::take)
    }
}

/// What a fork needs. No model uses it.
#[cfg(feature = "python")]
impl<M, W: Wake> Mailbox<M, W> {
    /// Are both locks free?
    pub(crate) fn is_unlocked(&self) -> bool {
        use std::sync::TryLockError;
        let held = [
            matches!(self.messages.try_lock(), Err(TryLockError::WouldBlock)),
            matches!(self.waker.try_lock(), Err(TryLockError::WouldBlock)),
        ];
        held == [false; 2]
    }

    /// Prepares the mailbox for a forked child that takes over the owner's work, with a waker of its own. Messages to
    /// the parent are dropped.
    pub(crate) fn reset_after_fork(&self, waker: W) {
        self.unpark();
        let messages = lock(&self.messages).as_mut().map(std::mem::take);
        let old = lock(&self.waker).replace(waker);
        // Relaxed: a forked child has one thread.
        self.filled.store(false, Ordering::Relaxed);
        drop((messages, old));
    }
}

impl<M, W> std::fmt::Debug for Mailbox<M, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox")
            .field("state", &self.state)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}
