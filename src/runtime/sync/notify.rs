//! Telling waiting tasks that something happened.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::wait_list::{Grant, WaitList};
use crate::runtime::shim::Mutex;
use crate::runtime::{coop, unpoisoned};

/// Wakes one waiting task, or all. Carries no data.
///
/// `notify_one` without a waiter is remembered, once, for the next to come: so a waiter that checks a condition and
/// then waits misses nothing.
#[derive(Debug, Default)]
pub struct Notify {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: WaitList,
    remembered: bool,
}

impl Notify {
    /// Nobody waits, nothing is remembered.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes the task that waits longest, else the next one that will. From any thread.
    pub fn notify_one(&self) {
        let mut state = unpoisoned(self.state.lock());
        if state.waiting.is_empty() {
            state.remembered = true;
            return;
        }
        let waker = state.waiting.grant_first(Grant::Own);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes all tasks that wait now; remembers nothing. From any thread.
    pub fn notify_waiters(&self) {
        let mut state = unpoisoned(self.state.lock());
        let mut wakers = Vec::new();
        while !state.waiting.is_empty() {
            wakers.extend(state.waiting.grant_first(Grant::Shared));
        }
        drop(state);
        for waker in wakers {
            waker.wake();
        }
    }

    /// Waits for a notification; in line from the first poll. Cancel-safe: one that was meant for a dropped waiter goes
    /// to the next.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, key: None }
    }
}

/// The future of [`Notify::notified`].
#[must_use = "waiting happens when this is awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    key: Option<usize>,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if coop::poll_proceed(cx).is_pending() {
            return Poll::Pending;
        }
        let mut state = unpoisoned(self.notify.state.lock());
        match self.key {
            Some(key) => {
                if state.waiting.poll(key, cx.waker()).is_none() {
                    return Poll::Pending;
                }
                state.waiting.leave(key);
                drop(state);
                self.key = None;
                Poll::Ready(())
            }
            None if std::mem::take(&mut state.remembered) => Poll::Ready(()),
            None => {
                let key = state.waiting.join(1, cx.waker());
                drop(state);
                self.key = Some(key);
                Poll::Pending
            }
        }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let grant = unpoisoned(self.notify.state.lock()).waiting.leave(key);
            if grant == Some(Grant::Own) {
                self.notify.notify_one();
            }
        }
    }
}

impl fmt::Debug for Notified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notified")
    }
}
