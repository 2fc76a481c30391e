//! A channel with many senders and one receiver. Values keep their order.
//!
//! It is one lock around a ring buffer. [`unbounded`] never makes a sender wait; [`bounded`] does when
//! `capacity` values are in the buffer.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::runtime::lock::{ShortGuard, ShortLock};
use crate::runtime::macros::opaque_debug;
use crate::runtime::{coop, wakers};
use crate::wait_queue::{Left, Place, WaitQueue};

/// Creates a channel that holds at most `capacity` values (at least 1).
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let channel = ChannelState::shared(capacity.max(1));
    (Sender { channel: channel.clone() }, Receiver { channel })
}

/// Creates a channel that holds any number of values.
pub fn unbounded<T>() -> (UnboundedSender<T>, Receiver<T>) {
    let channel = ChannelState::shared(usize::MAX);
    (UnboundedSender { sender: Sender { channel: channel.clone() } }, Receiver { channel })
}

type Channel<T> = ShortLock<ChannelState<T>>;

struct ChannelState<T> {
    values: VecDeque<T>,
    /// Room that was granted to waiting senders and not used yet.
    granted: usize,
    capacity: usize,
    waiting: WaitQueue<Waker>,
    receiver: Option<Waker>,
    senders: usize,
    closed: bool,
}

impl<T> ChannelState<T> {
    fn shared(capacity: usize) -> Arc<Channel<T>> {
        Arc::new(ShortLock::new(ChannelState {
            values: VecDeque::new(),
            granted: 0,
            capacity,
            waiting: WaitQueue::default(),
            receiver: None,
            senders: 1,
            closed: false,
        }))
    }

    fn has_room(&self) -> bool {
        self.values.len() + self.granted < self.capacity && self.waiting.is_empty()
    }

    /// Grants room to the first sender in the line.
    fn grant_room(&mut self) -> Option<Waker> {
        if self.values.len() + self.granted >= self.capacity {
            return None;
        }
        let (_, waker) = self.waiting.notify_first()?;
        self.granted += 1;
        Some(waker)
    }
}

/// The sending half of [`bounded`]; clone it for more senders.
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

impl<T> Sender<T> {
    /// Sends `value`, and waits for room. If this future is dropped early, the value is not sent.
    ///
    /// # Errors
    /// The value, if the receiver is gone.
    pub async fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut value = Some(value);
        let mut waiting = Waiting { channel: &self.channel, place: None };
        poll_fn(move |cx| {
            // The closure takes the whole struct, which leaves the line when it is dropped. A mere use of
            // `waiting.place` would give it a copy of that field, because the type of the field is `Copy`.
            let waiting = &mut waiting;
            coop::spend(cx, |cx| {
                let mut state = self.channel.lock();
                if let Some(place) = waiting.place {
                    if let Some(waker) = state.waiting.waiter(place) {
                        let replaced = wakers::renew(waker, cx.waker());
                        drop(state);
                        drop(replaced);
                        return Poll::Pending;
                    }
                    if state.waiting.consume(place) {
                        state.granted -= 1;
                    }
                    waiting.place = None;
                } else if !state.closed && !state.has_room() {
                    waiting.place = Some(state.waiting.join(None, cx.waker().clone()));
                    return Poll::Pending;
                }
                match value.take() {
                    Some(value) => Poll::Ready(push(state, value)),
                    None => Poll::Ready(Ok(())),
                }
            })
        })
        .await
    }

    /// Sends `value` if there is room. It never waits and may be called on any thread.
    ///
    /// # Errors
    /// The value, if the buffer is full or the receiver is gone.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let state = self.channel.lock();
        if !state.closed && !state.has_room() {
            return Err(TrySendError::Full(value));
        }
        push(state, value).map_err(|SendError(value)| TrySendError::Closed(value))
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.channel.lock().closed
    }
}

fn push<T>(mut state: ShortGuard<'_, ChannelState<T>>, value: T) -> Result<(), SendError<T>> {
    if state.closed {
        return Err(SendError(value));
    }
    state.values.push_back(value);
    let waker = state.receiver.take();
    drop(state);
    wakers::wake(waker);
    Ok(())
}

/// A place in the line of senders. Dropping it leaves the line.
struct Waiting<'a, T> {
    channel: &'a Channel<T>,
    place: Option<Place>,
}

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let mut state = self.channel.lock();
            let left = state.waiting.leave(place);
            if let Left::Notified = left {
                state.granted -= 1;
            }
            let waker = state.grant_room();
            drop(state);
            drop(left);
            wakers::wake(waker);
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.channel.lock().senders += 1;
        Sender { channel: self.channel.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.channel.lock();
        state.senders -= 1;
        let waker = if state.senders == 0 { state.receiver.take() } else { None };
        drop(state);
        wakers::wake(waker);
    }
}

/// The sending half of [`unbounded`]; clone it for more senders.
pub struct UnboundedSender<T> {
    sender: Sender<T>,
}

impl<T> UnboundedSender<T> {
    /// Sends `value`. It never waits and may be called on any thread.
    ///
    /// # Errors
    /// The value, if the receiver is gone.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        push(self.sender.channel.lock(), value)
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl<T> Clone for UnboundedSender<T> {
    fn clone(&self) -> UnboundedSender<T> {
        UnboundedSender { sender: self.sender.clone() }
    }
}

/// The receiving half.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
}

impl<T> Receiver<T> {
    /// Returns the next value, or `None` when all senders are gone and all values were received. Cancel-safe.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// As `recv`, for hand-written futures.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        coop::spend(cx, |cx| self.poll_value(cx))
    }

    fn poll_value(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.channel.lock();
        if let Some(value) = state.values.pop_front() {
            let waker = state.grant_room();
            drop(state);
            wakers::wake(waker);
            return Poll::Ready(Some(value));
        }
        if state.senders == 0 || state.closed {
            return Poll::Ready(None);
        }
        let replaced = wakers::store(&mut state.receiver, cx.waker());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Waits for at least one value, and appends up to `limit` of the available values to `values`. Returns how
    /// many: 0 if all senders are gone and all values were received, or if `limit` is 0. Takes one lock for all
    /// of them. Cancel-safe.
    pub async fn recv_many(&mut self, values: &mut Vec<T>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        let Some(first) = self.recv().await else { return 0 };
        values.push(first);
        let mut state = self.channel.lock();
        let more = (limit - 1).min(state.values.len());
        values.extend(state.values.drain(..more));
        let woken: Vec<Waker> = std::iter::from_fn(|| state.grant_room()).collect();
        drop(state);
        wakers::wake_all(woken);
        1 + more
    }

    /// How many values are in the buffer.
    pub fn len(&self) -> usize {
        self.channel.lock().values.len()
    }

    /// Whether no value is in the buffer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no further value can be sent: all senders are gone, or the channel was closed. Those in the
    /// buffer can still be received.
    pub fn is_closed(&self) -> bool {
        let state = self.channel.lock();
        state.closed || state.senders == 0
    }

    /// Returns the next value, if it is there already.
    pub fn try_recv(&mut self) -> Option<T> {
        let mut state = self.channel.lock();
        let value = state.values.pop_front()?;
        let waker = state.grant_room();
        drop(state);
        wakers::wake(waker);
        Some(value)
    }

    /// Refuses further values. Those in the buffer can still be received.
    pub fn close(&mut self) {
        let mut state = self.channel.lock();
        state.closed = true;
        let woken = state.waiting.serve_all();
        drop(state);
        wakers::wake_all(woken);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.close();
        let mut state = self.channel.lock();
        let (values, waker) = (std::mem::take(&mut state.values), state.receiver.take());
        drop(state);
        // Not under the lock: the values may hold senders of this channel.
        drop((values, waker));
    }
}

/// The receiver is gone. The value is returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

/// Why a value could not be sent at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// The buffer is full.
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendError(..)")
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the receiver is gone")
    }
}

impl<T> Error for SendError<T> {}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "Full(..)",
            TrySendError::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "the channel is full",
            TrySendError::Closed(_) => "the receiver is gone",
        })
    }
}

impl<T> Error for TrySendError<T> {}

opaque_debug! {
    "mpsc::Sender" [T] Sender<T>;
    "mpsc::UnboundedSender" [T] UnboundedSender<T>;
    "mpsc::Receiver" [T] Receiver<T>;
}
