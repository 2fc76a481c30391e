//! A hand-written channel with room for one value: what a waker is for, and what `will_wake` saves.
//!
//! `cargo run --example one_slot_channel --no-default-features`

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use wakeloop::runtime::block_on;

struct Slot<T> {
    value: Option<T>,
    /// The task that waits for the slot to change: the sender for room, or the receiver for a value, never
    /// both.
    waiting: Option<Waker>,
}

struct Channel<T>(Mutex<Slot<T>>);

impl<T> Channel<T> {
    fn new() -> Arc<Channel<T>> {
        Arc::new(Channel(Mutex::new(Slot { value: None, waiting: None })))
    }

    async fn send(&self, value: T) {
        let mut value = Some(value);
        poll_fn(|cx| {
            self.step(cx, |slot| match slot.value {
                Some(_) => None,
                None => {
                    slot.value = value.take();
                    Some(())
                }
            })
        })
        .await
    }

    async fn receive(&self) -> T {
        poll_fn(|cx| self.step(cx, |slot| slot.value.take())).await
    }

    /// Runs `attempt` and wakes the other side, or leaves our waker for the other side to wake.
    fn step<R>(&self, cx: &mut Context<'_>, attempt: impl FnOnce(&mut Slot<T>) -> Option<R>) -> Poll<R> {
        let mut slot = self.0.lock().unwrap();
        if let Some(result) = attempt(&mut slot) {
            let other = slot.waiting.take();
            // Not under the lock: the woken task may run at once on this thread, and need the lock.
            drop(slot);
            if let Some(other) = other {
                other.wake();
            }
            return Poll::Ready(result);
        }
        match &slot.waiting {
            // Polled again by the same task: the waker we left still works, and cloning is not free.
            Some(waker) if waker.will_wake(cx.waker()) => {}
            // Otherwise the last poll counts: the old waker would wake a task that has moved on.
            _ => slot.waiting = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

fn main() {
    let channel = Channel::new();
    let sender = {
        let channel = channel.clone();
        std::thread::spawn(move || {
            block_on(async {
                for n in 1..=5 {
                    channel.send(n).await;
                    println!("sent {n}");
                }
            });
        })
    };
    let sum = block_on(async {
        let mut sum = 0;
        for _ in 1..=5 {
            let n = channel.receive().await;
            println!("        received {n}");
            sum += n;
        }
        sum
    });
    sender.join().unwrap();
    assert_eq!(sum, 15);
}
