//! Models of the channels.

use super::{mpsc, oneshot};
use crate::runtime::shim::model::{block_on, check, thread};

#[test]
fn a_oneshot_value_arrives() {
    check(|| {
        let (sender, receiver) = oneshot::channel();
        let sending = thread::spawn(move || sender.send(Box::new(7)).unwrap());
        assert_eq!(*block_on(receiver).unwrap(), 7);
        sending.join().unwrap();
    });
}

#[test]
fn a_dropped_oneshot_sender_wakes_the_receiver() {
    check(|| {
        let (sender, receiver) = oneshot::channel::<u8>();
        let going = thread::spawn(move || drop(sender));
        assert!(block_on(receiver).is_err());
        going.join().unwrap();
    });
}

#[test]
fn a_oneshot_value_belongs_to_one_side_when_the_receiver_is_dropped() {
    check(|| {
        let (sender, mut receiver) = oneshot::channel();
        let sending = thread::spawn(move || sender.send(Box::new(7)).is_err());
        let got = receiver.try_recv().unwrap();
        drop(receiver);
        let came_back = sending.join().unwrap();
        assert!(!(got.is_some() && came_back));
    });
}

/// Polled twice with different wakers while the value comes: the last waker is woken.
#[test]
fn a_oneshot_receiver_may_change_its_waker() {
    check(|| {
        let (sender, mut receiver) = oneshot::channel();
        let sending = thread::spawn(move || sender.send(7).unwrap());
        let mut noop = std::task::Context::from_waker(std::task::Waker::noop());
        let got = match std::future::Future::poll(std::pin::Pin::new(&mut receiver), &mut noop) {
            std::task::Poll::Ready(value) => value,
            std::task::Poll::Pending => block_on(receiver),
        };
        assert_eq!(got, Ok(7));
        sending.join().unwrap();
    });
}

#[test]
fn a_bounded_channel_passes_values_in_order_and_wakes_both_sides() {
    check(|| {
        let (sender, mut receiver) = mpsc::bounded(1);
        let sending = thread::spawn(move || {
            block_on(async {
                sender.send(1).await.unwrap();
                sender.send(2).await.unwrap();
            });
        });
        let got = block_on(async { (receiver.recv().await, receiver.recv().await, receiver.recv().await) });
        assert_eq!(got, (Some(1), Some(2), None));
        sending.join().unwrap();
    });
}

/// Two senders wait for room when the receiver is dropped. Both return an error, and no value stays behind.
#[test]
fn waiting_senders_are_woken_when_the_receiver_is_dropped() {
    check(|| {
        let (sender, receiver) = mpsc::bounded(1);
        let value = std::sync::Arc::new(());
        sender.try_send(value.clone()).unwrap();
        let waiting = [sender.clone(), sender].map(|sender| {
            let value = value.clone();
            thread::spawn(move || drop(block_on(sender.send(value))))
        });
        drop(receiver);
        waiting.into_iter().for_each(|sending| sending.join().unwrap());
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    });
}

/// A sender that waits for room goes at any moment: the room is the next one's.
#[test]
fn a_sender_that_goes_leaves_its_room_to_the_next() {
    check(|| {
        let (sender, mut receiver) = mpsc::bounded(1);
        sender.try_send(0).unwrap();
        let going = sender.clone();
        let mut sending = Box::pin(async move { going.send(1).await });
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::future::Future::poll(sending.as_mut(), &mut context).is_pending());
        let leaving = thread::spawn(move || drop(sending));
        let next = thread::spawn(move || block_on(sender.send(2)).unwrap());
        assert_eq!(block_on(async { (receiver.recv().await, receiver.recv().await) }), (Some(0), Some(2)));
        leaving.join().unwrap();
        next.join().unwrap();
    });
}
