//! Notifies waiting tasks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::poison::unpoisoned;
use crate::runtime::shim::Mutex;
use crate::runtime::{coop, wakers};
use crate::wait_queue::{Left, Place, WaitQueue};

/// Wakes one waiting task, or all. It carries no data.
///
/// `notify_one` without a waiter is remembered, once, for the next waiter. So a waiter that checks a condition
/// and then waits misses nothing.
#[derive(Debug, Default)]
pub struct Notify {
    state: Mutex<NotifyState>,
}

#[derive(Debug, Default)]
struct NotifyState {
    waiting: WaitQueue<Waker>,
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
        let notified = state.waiting.notify_first();
        drop(state);
        wakers::wake(notified.map(|(_, waker)| waker));
    }

    /// Ends all waits: every existing [`Notified`], polled or not. Remembers nothing for later ones. Callable
    /// from any thread.
    pub fn notify_waiters(&self) {
        let mut state = unpoisoned(self.state.lock());
        state.rounds += 1;
        let woken = state.waiting.serve_all();
        drop(state);
        wakers::wake_all(woken);
    }

    /// Waits for a notification. The task joins the line at the first poll. Cancel-safe: a notification for a
    /// dropped waiter goes to the next.
    ///
    /// [`Notify::notify_waiters`] counts from this call on. So a task misses nothing if it makes the future,
    /// then checks its condition, and only then awaits the future.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, place: None, rounds: unpoisoned(self.state.lock()).rounds }
    }
}

/// The future of [`Notify::notified`].
#[derive(Debug)]
#[must_use = "waiting happens when this is awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    place: Option<Place>,
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
        match self.place {
            Some(place) => {
                if let Some(waker) = state.waiting.waiter(place) {
                    let replaced = wakers::renew(waker, cx.waker());
                    drop(state);
                    drop(replaced);
                    return Poll::Pending;
                }
                state.waiting.consume(place);
                self.rounds = state.rounds;
                drop(state);
                self.place = None;
                Poll::Ready(())
            }
            None if self.rounds != state.rounds => {
                self.rounds = state.rounds;
                Poll::Ready(())
            }
            None if std::mem::take(&mut state.remembered) => Poll::Ready(()),
            None => {
                let place = state.waiting.join(None, cx.waker().clone());
                drop(state);
                self.place = Some(place);
                Poll::Pending
            }
        }
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let left = unpoisoned(self.notify.state.lock()).waiting.leave(place);
            if let Left::Notified = left {
                self.notify.notify_one();
            }
        }
    }
}
