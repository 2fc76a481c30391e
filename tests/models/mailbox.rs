//! Models of the mailbox: two threads send to an owner that parks, and that closes.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::shim::model::{AtomicUsize, Mutex, block_on, check, thread};
use super::{Mailbox, SideList, Wake};

/// What the owner waits for, as for an eventfd: a wake before the wait ends it at once. It counts its uses, and knows
/// whether it was dropped.
#[derive(Clone)]
struct Signal(Arc<Wakes>);

struct Wakes {
    /// Was it woken, and who waits?
    state: Mutex<(bool, Option<std::task::Waker>)>,
    count: AtomicUsize,
}

impl Signal {
    fn new() -> Signal {
        Signal(Arc::new(Wakes { state: Mutex::new((false, None)), count: AtomicUsize::new(0) }))
    }

    fn wait(&self) {
        block_on(std::future::poll_fn(|cx| {
            let mut state = self.0.state.lock().unwrap();
            if std::mem::take(&mut state.0) {
                return std::task::Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            std::task::Poll::Pending
        }));
    }

    fn wakes(&self) -> usize {
        self.0.count.load(Relaxed)
    }
}

impl Wake for Signal {
    fn wake(&self) {
        self.0.count.fetch_add(1, Relaxed);
        let mut state = self.0.state.lock().unwrap();
        state.0 = true;
        let waiting = state.1.take();
        drop(state);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

/// A message that counts how often it ends: run or dropped.
struct Message {
    sender: usize,
    number: usize,
    ended: Arc<AtomicUsize>,
}

impl Drop for Message {
    fn drop(&mut self) {
        self.ended.fetch_add(1, SeqCst);
    }
}

type Box = Arc<Mailbox<Message, Signal>>;

fn send_from_thread(
    mailbox: &Box,
    sender: usize,
    count: usize,
    ended: &Arc<AtomicUsize>,
) -> thread::JoinHandle<()> {
    let (mailbox, ended) = (mailbox.clone(), ended.clone());
    thread::spawn(move || {
        for number in 0..count {
            mailbox.send(Message { sender, number, ended: ended.clone() });
        }
    })
}

/// Waits for messages until there are so many, as a loop does: it takes them, and parks if there are none.
fn receive(mailbox: &Box, signal: &Signal, count: usize) -> Vec<(usize, usize)> {
    let mut received = Vec::new();
    while received.len() < count {
        match mailbox.take() {
            Some(messages) => received.extend(messages.iter().map(|it| (it.sender, it.number))),
            None if mailbox.park() => {
                signal.wait();
                mailbox.unpark();
            }
            None => {}
        }
    }
    received
}

#[test]
fn messages_of_two_senders_all_reach_an_owner_that_parks() {
    check(|| {
        let (signal, ended) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
        let mailbox = Arc::new(Mailbox::new(signal.clone()));
        let senders = [(1, 2), (2, 1)].map(|(name, count)| send_from_thread(&mailbox, name, count, &ended));
        let received = receive(&mailbox, &signal, 3);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        let of = |name| received.iter().filter(move |(sender, _)| *sender == name).map(|(_, number)| *number);
        assert_eq!((of(1).collect(), of(2).collect()), (vec![0, 1], vec![0]));
        assert_eq!(ended.load(SeqCst), 3);
        // One wake for each time that it has parked, at most.
        assert!(signal.wakes() <= 3);
    });
}

#[test]
fn a_mailbox_that_closes_drops_each_message_once_and_wakes_nobody() {
    check(|| {
        let (signal, ended) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
        let mailbox = Arc::new(Mailbox::new(signal.clone()));
        let senders = [1, 2].map(|name| send_from_thread(&mailbox, name, 1, &ended));
        // A turn of the loop, and its end.
        let received = mailbox.take().map_or(0, |messages| messages.len());
        mailbox.park();
        mailbox.close();
        let wakes = signal.wakes();
        // The waker is gone: nobody else refers to the signal.
        assert_eq!(Arc::strong_count(&signal.0), 1);
        assert!(mailbox.is_closed());
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert_eq!(signal.wakes(), wakes);
        assert!(received <= 2);
        assert_eq!(ended.load(SeqCst), 2);
        assert!(mailbox.take().is_none_or(|messages| messages.is_empty()));
    });
}

/// As the inbox of a loop does for handles. The owner also takes items at other times.
#[test]
fn items_of_a_side_list_all_reach_an_owner_that_parks() {
    check(|| {
        let (signal, ended) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
        let shared = Arc::new((Mailbox::new(signal.clone()), SideList::new()));
        let senders = [(1, 2), (2, 1)].map(|(sender, count)| {
            let (shared, ended) = (shared.clone(), ended.clone());
            thread::spawn(move || {
                for number in 0..count {
                    assert!(shared.1.push((sender, number)).is_some());
                    shared.0.send(Message { sender, number, ended: ended.clone() });
                }
            })
        });
        let (mailbox, side) = &*shared;
        let mut received = side.take().unwrap_or_default();
        while received.len() < 3 {
            // As a turn of the loop does: it may park after any take.
            drop(mailbox.take());
            received.extend(side.take().unwrap_or_default());
            if received.len() < 3 && mailbox.park() {
                signal.wait();
                mailbox.unpark();
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        let of = |name| received.iter().filter(move |(sender, _)| *sender == name).map(|(_, number)| *number);
        assert_eq!((of(1).collect(), of(2).collect()), (vec![0, 1], vec![0]));
    });
}

/// The other loop, which waits in its place, is woken for what was sent before and after.
#[test]
fn an_embedded_owner_is_woken_by_both_senders() {
    check(|| {
        let (signal, ended) = (Signal::new(), Arc::new(AtomicUsize::new(0)));
        let mailbox = Arc::new(Mailbox::new(signal.clone()));
        let senders = [1, 2].map(|name| send_from_thread(&mailbox, name, 1, &ended));
        let mut received = 0;
        while received < 2 {
            mailbox.park_embedded(false);
            signal.wait();
            mailbox.unpark();
            received += mailbox.take().map_or(0, |messages| messages.len());
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert_eq!(ended.load(SeqCst), 2);
    });
}
