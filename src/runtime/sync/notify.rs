//! Notifies waiting tasks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::wait_list::{Grant, WaitList};
use crate::runtime::shim::Mutex;
use crate::runtime::{coop, unpoisoned, wakers};

/// Wakes one waiting task, or all. It carries no data.
///
/// `notify_one` without a waiter is remembered, once, for the next waiter. So a waiter that checks a condition
/// and then waits misses nothing.
#[derive(Debug, Default)]
pub struct Notify {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: WaitList,
    remembered: bool,
    /// How often all were notified.
    rounds: u64,
}

impl Notify {
    /// Creates a `Notify` without waiters, and with nothing remembered.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes the task that has waited longest, or else the next one to wait. Callable from any thread.
    pub fn notify_one(&self) {
        let mut state = unpoisoned(self.state.lock());
        if state.waiting.is_empty() {
            state.remembered = true;
            return;
        }
        let waker = state.waiting.grant_first(Grant::Own);
        drop(state);
        wakers::wake(waker);
    }

    /// Ends all waits: every existing [`Notified`], polled or not. Remembers nothing for later ones. Callable
    /// from any thread.
    pub fn notify_waiters(&self) {
        let mut state = unpoisoned(self.state.lock());
        state.rounds += 1;
        let woken = state.waiting.grant_all();
        drop(state);
        wakers::wake_all(woken);
    }

    /// Waits for a notification. The task joins the line at the first poll. Cancel-safe: a notification for a
    /// dropped waiter goes to the next.
    ///
    /// [`Notify::notify_waiters`] counts from this call on. So a task misses nothing if it makes the future,
    /// then checks its condition, and only then awaits the future.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, key: None, rounds: unpoisoned(self.state.lock()).rounds }
    }
}

/// The future of [`Notify::notified`].
#[derive(Debug)]
#[must_use = "waiting happens when this is awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    key: Option<usize>,
    /// The rounds that ended before this future was made.
    rounds: u64,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        coop::spend(cx, |cx| self.poll_notified(cx))
    }
}

impl Notified<'_> {
    fn poll_notified(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = unpoisoned(self.notify.state.lock());
        match self.key {
            Some(key) => {
                if let Err(replaced) = state.waiting.poll(key, cx.waker()) {
                    drop(state);
                    drop(replaced);
                    return Poll::Pending;
                }
                let left = state.waiting.leave(key);
                self.rounds = state.rounds;
                drop(state);
                drop(left);
                self.key = None;
                Poll::Ready(())
            }
            None if self.rounds != state.rounds => {
                self.rounds = state.rounds;
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
            let left = unpoisoned(self.notify.state.lock()).waiting.leave(key);
            if let Ok(Grant::Own) = left {
                self.notify.notify_one();
            }
        }
    }
}
