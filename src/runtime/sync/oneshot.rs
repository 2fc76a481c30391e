//! A channel for one value. It is one allocation and has no lock.
//!
//! The state word: `SENT` (the sender is done, with or without a value), `CLOSED` (the receiver is gone),
//! `WAITING` (the waker slot is set). The value belongs to the sender until `SENT`, then to the receiver; if
//! `CLOSED` came first, it stays with the sender. The waker slot belongs to the receiver while `WAITING` is
//! clear. While it is set nobody touches it, until `SENT` passes it to the sender, unless `CLOSED` came first.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::{Context, Poll, Waker};

use crate::runtime::macros::opaque_debug;
use crate::runtime::shim::{AtomicU8, UnsafeCell};
use crate::runtime::{coop, wakers};

const SENT: u8 = 1;
const CLOSED: u8 = 2;
const WAITING: u8 = 4;

/// A channel for one value.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let inner = Arc::new(Inner {
        state: AtomicU8::new(0),
        value: UnsafeCell::new(None),
        waker: UnsafeCell::new(None),
    });
    (Sender { inner: Some(inner.clone()) }, Receiver { inner, done: false })
}

struct Inner<T> {
    state: AtomicU8,
    value: UnsafeCell<Option<T>>,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: the state hands value and waker to one side at a time.
unsafe impl<T: Send> Send for Inner<T> {}
// SAFETY: the state hands value and waker to one side at a time.
unsafe impl<T: Send> Sync for Inner<T> {}

/// The sending half. If it is dropped without sending, the receiver gets an error.
pub struct Sender<T> {
    /// Taken by `send`.
    inner: Option<Arc<Inner<T>>>,
}

impl<T> Sender<T> {
    /// Sends `value`. It never waits and may be called on any thread.
    ///
    /// # Errors
    /// Returns the value if the receiver is gone.
    pub fn send(mut self, value: T) -> Result<(), T> {
        let Some(inner) = self.inner.take() else { return Err(value) };
        // SAFETY: before SENT the value is the sender's.
        inner.value.with_mut(|slot| unsafe { *slot = Some(value) });
        if inner.finish() {
            return Ok(());
        }
        // SAFETY: CLOSED came first, so the value stayed ours.
        match inner.value.with_mut(|slot| unsafe { (*slot).take() }) {
            Some(value) => Err(value),
            None => Ok(()),
        }
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        // Relaxed: nothing is read that depends on it.
        self.inner.as_ref().is_none_or(|inner| inner.state.load(Relaxed) & CLOSED != 0)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.finish();
        }
    }
}

impl<T> Inner<T> {
    /// Marks the sender as done. Returns false if the receiver is gone.
    fn finish(&self) -> bool {
        // Ordering: Release hands the value to the receiver, Acquire gets the waker from it.
        let before = self.state.fetch_or(SENT, AcqRel);
        if before & CLOSED != 0 {
            return false;
        }
        if before & WAITING != 0 {
            // SAFETY: set, and passed to us by SENT.
            wakers::wake(self.waker.with_mut(|slot| unsafe { (*slot).take() }));
        }
        true
    }
}

/// The receiving half: a future of the value. Cancel-safe: poll it by reference, and the value is not lost.
pub struct Receiver<T> {
    inner: Arc<Inner<T>>,
    done: bool,
}

impl<T> Receiver<T> {
    /// Returns the value if it is there already, or `Ok(None)` if it may still come.
    ///
    /// # Errors
    /// If the sender was dropped without sending, or if the value was received before.
    pub fn try_recv(&mut self) -> Result<Option<T>, RecvError> {
        if self.done {
            return Err(RecvError(()));
        }
        // Ordering: pairs with `finish`.
        if self.inner.state.load(Acquire) & SENT == 0 {
            return Ok(None);
        }
        self.take().map(Some)
    }

    /// Takes the value. Call this after SENT was seen.
    fn take(&mut self) -> Result<T, RecvError> {
        self.done = true;
        // SAFETY: SENT passed the value to us.
        self.inner.value.with_mut(|slot| unsafe { (*slot).take() }).ok_or(RecvError(()))
    }

    /// Sets or clears WAITING. Returns false if SENT came first.
    fn flip_waiting(&self) -> bool {
        let flip = |state| (state & SENT == 0).then_some(state ^ WAITING);
        // Ordering: Release passes the slot to `finish`; Acquire, on failure, gets the value from it.
        self.inner.state.fetch_update(Release, Acquire, flip).is_ok()
    }
}

impl<T> Unpin for Receiver<T> {}

impl<T> Future for Receiver<T> {
    type Output = Result<T, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.done {
            return Poll::Ready(Err(RecvError(())));
        }
        coop::spend(cx, |cx| self.poll_value(cx))
    }
}

impl<T> Receiver<T> {
    fn poll_value(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, RecvError>> {
        // Ordering: pairs with `finish`.
        let state = self.inner.state.load(Acquire);
        if state & SENT != 0 {
            return Poll::Ready(self.take());
        }
        if state & WAITING != 0 {
            // The sender may take the waker at any moment, so first take the slot back, then look at it.
            if !self.flip_waiting() {
                return Poll::Ready(self.take());
            }
        }
        // SAFETY: WAITING is clear: the slot is ours.
        let old = self.inner.waker.with_mut(|slot| wakers::store(unsafe { &mut *slot }, cx.waker()));
        if !self.flip_waiting() {
            return Poll::Ready(self.take());
        }
        drop(old);
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.done {
            // The sender has finished with the channel, and so have we.
            return;
        }
        // Ordering: Acquire pairs with `finish` if that came first: the value is ours. A later sender touches
        // nothing of ours.
        let before = self.inner.state.fetch_or(CLOSED, Acquire);
        if before & SENT != 0 {
            // SAFETY: SENT came first, so the value is ours.
            drop(self.inner.value.with_mut(|slot| unsafe { (*slot).take() }));
        }
    }
}

opaque_debug! {
    "oneshot::Sender" [T] Sender<T>;
    "oneshot::Receiver" [T] Receiver<T>;
}

/// The sender was dropped without sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError(());

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender is gone")
    }
}

impl Error for RecvError {}
