//! Tests of channels, notifications and permits in unusual situations.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use wakeloop::runtime::sync::{Mutex as AsyncMutex, Notify, Semaphore, mpsc};
use wakeloop::runtime::{Builder, block_on, yield_now};

const LONG: Duration = Duration::from_secs(60);

/// Calls something when the last waker is dropped, and when one is woken.
struct Hooked {
    on_wake: Box<dyn Fn() + Send + Sync>,
    on_drop: Box<dyn Fn() + Send + Sync>,
}

impl Wake for Hooked {
    fn wake(self: Arc<Self>) {
        (self.on_wake)();
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

fn on_drop(hook: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Hooked { on_wake: Box::new(|| ()), on_drop: Box::new(hook) }))
}

fn on_wake(hook: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Hooked { on_wake: Box::new(hook), on_drop: Box::new(|| ()) }))
}

fn poll_with<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Fails if `body` takes too long.
fn ends(body: impl FnOnce() + Send + 'static) {
    let (done, waiting) = std_mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    if waiting.recv_timeout(LONG) != Err(std_mpsc::RecvTimeoutError::Timeout) {
        return thread.join().unwrap();
    }
    panic!("it does not end");
}

#[test]
fn a_waker_may_use_the_semaphore_when_it_is_replaced_or_dropped() {
    ends(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let hooked = || {
            let semaphore = semaphore.clone();
            on_drop(move || semaphore.release(1))
        };
        let mut waiting = Box::pin(semaphore.acquire(10));
        assert!(poll_with(waiting.as_mut(), &hooked()).is_pending());
        assert!(poll_with(waiting.as_mut(), &hooked()).is_pending());
        assert_eq!(semaphore.available(), 1);
        drop(waiting);
        assert_eq!(semaphore.available(), 2);
    });
}

#[test]
fn a_waker_may_use_the_notification_when_it_is_replaced_or_dropped() {
    ends(|| {
        let notify = Arc::new(Notify::new());
        let hooked = || {
            let notify = notify.clone();
            on_drop(move || notify.notify_waiters())
        };
        let mut waiting = Box::pin(notify.notified());
        assert!(poll_with(waiting.as_mut(), &hooked()).is_pending());
        assert!(poll_with(waiting.as_mut(), &hooked()).is_pending());
        // The first waker was dropped, and has notified all.
        assert!(poll_with(waiting.as_mut(), Waker::noop()).is_ready());
        let mut waiting = Box::pin(notify.notified());
        assert!(poll_with(waiting.as_mut(), &hooked()).is_pending());
        drop(waiting);
    });
}

#[test]
fn a_waker_may_use_the_channel_when_it_is_replaced_or_dropped() {
    ends(|| {
        let (sender, mut receiver) = mpsc::bounded::<u8>(1);
        let hooked = || {
            let sender = sender.clone();
            on_drop(move || {
                let _ = sender.try_send(1);
            })
        };
        assert!(receiver.poll_recv(&mut Context::from_waker(&hooked())).is_pending());
        assert!(receiver.poll_recv(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(receiver.try_recv(), Some(1));

        sender.try_send(2).unwrap();
        let mut sending = Box::pin(sender.send(3));
        assert!(poll_with(sending.as_mut(), &hooked()).is_pending());
        assert!(poll_with(sending.as_mut(), &hooked()).is_pending());
        drop(sending);
    });
}

#[test]
fn a_waker_that_panics_keeps_no_other_from_being_woken() {
    let notify = Notify::new();
    let woken = Arc::new(AtomicUsize::new(0));
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(notify.notified())).collect();
    for (n, one) in waiting.iter_mut().enumerate() {
        let woken = woken.clone();
        let waker = on_wake(move || {
            assert!(n != 0, "on purpose");
            woken.fetch_add(1, SeqCst);
        });
        assert!(poll_with(one.as_mut(), &waker).is_pending());
    }
    notify.notify_waiters();
    assert_eq!(woken.load(SeqCst), 2);
}

#[test]
fn a_receiver_that_is_gone_holds_no_waker() {
    let (sender, mut receiver) = mpsc::unbounded::<u8>();
    let dropped = Arc::new(AtomicBool::new(false));
    let seen = dropped.clone();
    let waker = on_drop(move || seen.store(true, SeqCst));
    assert!(receiver.poll_recv(&mut Context::from_waker(&waker)).is_pending());
    drop((waker, receiver));
    assert!(dropped.load(SeqCst));
    drop(sender);
}

#[test]
fn a_wait_that_was_made_before_all_were_notified_is_over() {
    let notify = Notify::new();
    let mut before = pin!(notify.notified());
    notify.notify_waiters();
    let mut after = pin!(notify.notified());
    assert!(poll_with(before.as_mut(), Waker::noop()).is_ready());
    assert!(poll_with(after.as_mut(), Waker::noop()).is_pending());
}

#[test]
fn a_wait_that_all_were_notified_of_leaves_what_is_remembered_to_others() {
    let notify = Notify::new();
    let mut before = pin!(notify.notified());
    notify.notify_waiters();
    notify.notify_one();
    assert!(poll_with(before.as_mut(), Waker::noop()).is_ready());
    assert!(poll_with(pin!(notify.notified()), Waker::noop()).is_ready());
    assert!(poll_with(pin!(notify.notified()), Waker::noop()).is_pending());
}

#[test]
fn the_count_of_permits_saturates() {
    let semaphore = Semaphore::new(usize::MAX);
    let permit = block_on(semaphore.acquire(1));
    semaphore.release(10);
    assert_eq!(semaphore.available(), usize::MAX);
    drop(permit);
    assert_eq!(semaphore.available(), usize::MAX);
}

#[test]
fn a_permit_that_a_dropped_waiter_was_given_goes_to_the_next() {
    let semaphore = Semaphore::new(1);
    let held = block_on(semaphore.acquire(1));
    let (mut first, mut second) = (Box::pin(semaphore.acquire(1)), Box::pin(semaphore.acquire(1)));
    assert!(poll_with(first.as_mut(), Waker::noop()).is_pending());
    assert!(poll_with(second.as_mut(), Waker::noop()).is_pending());
    drop(held);
    drop(first);
    assert!(poll_with(second.as_mut(), Waker::noop()).is_ready());
}

#[test]
fn a_waiter_for_many_permits_is_not_overtaken_and_lets_others_pass_when_it_is_dropped() {
    let semaphore = Semaphore::new(2);
    let mut many = Box::pin(semaphore.acquire(3));
    let mut few = Box::pin(semaphore.acquire(1));
    assert!(poll_with(many.as_mut(), Waker::noop()).is_pending());
    assert!(poll_with(few.as_mut(), Waker::noop()).is_pending());
    assert!(semaphore.try_acquire(1).is_none());
    let woken = Arc::new(Mutex::new(0));
    let seen = woken.clone();
    assert!(poll_with(few.as_mut(), &on_wake(move || *seen.lock().unwrap() += 1)).is_pending());
    drop(many);
    assert_eq!(*woken.lock().unwrap(), 1);
    assert!(poll_with(few.as_mut(), Waker::noop()).is_ready());
}

#[test]
fn a_hundred_thousand_waiters_may_give_up_in_any_order() {
    ends(|| {
        let notify = Notify::new();
        let mut waiting: Vec<_> =
            (0..if cfg!(miri) { 100 } else { 100_000 }).map(|_| Box::pin(notify.notified())).collect();
        for one in &mut waiting {
            assert!(poll_with(one.as_mut(), Waker::noop()).is_pending());
        }
        // From the end, which is the worst case for a search from the front.
        while let Some(last) = waiting.pop() {
            drop(last);
        }
        let mut next = pin!(notify.notified());
        assert!(poll_with(next.as_mut(), Waker::noop()).is_pending());
        notify.notify_one();
        block_on(poll_fn(|cx| next.as_mut().poll(cx)));
    });
}

#[test]
fn an_owned_permit_can_be_moved_and_is_released() {
    let semaphore = Arc::new(Semaphore::new(2));
    let first = block_on(semaphore.clone().acquire_owned(1));
    let second = semaphore.clone().try_acquire_owned(1).unwrap();
    assert!(semaphore.clone().try_acquire_owned(1).is_none());
    std::thread::spawn(move || drop(first)).join().unwrap();
    assert_eq!(semaphore.available(), 1);
    second.forget();
    assert_eq!(semaphore.available(), 1);
    {
        let mut waiting = pin!(semaphore.clone().acquire_owned(2));
        assert!(poll_with(waiting.as_mut(), Waker::noop()).is_pending());
        assert!(semaphore.try_acquire(1).is_none(), "nobody overtakes");
    }
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn one_task_at_a_time_has_the_lock_also_across_awaits() {
    let count = if cfg!(miri) { 6 } else { 100 };
    for workers in [1, 2] {
        let rt = Builder::new().worker_threads(workers).build().unwrap();
        let number = Arc::new(AsyncMutex::new(0));
        let tasks: Vec<_> = (0..count)
            .map(|n| {
                let number = number.clone();
                rt.spawn(async move {
                    for _ in 0..10 {
                        let before;
                        if n % 2 == 0 {
                            let mut held = number.lock().await;
                            before = *held;
                            yield_now().await;
                            *held = before + 1;
                        } else {
                            let mut held = number.clone().lock_owned().await;
                            before = *held;
                            yield_now().await;
                            *held = before + 1;
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            rt.block_on(task).unwrap();
        }
        assert_eq!(Arc::into_inner(number).unwrap().into_inner(), 10 * count);
    }
}

#[test]
fn a_lock_is_released_by_a_panic_and_passed_on_by_a_dropped_waiter() {
    let lock = Arc::new(AsyncMutex::new(1));
    let theirs = lock.clone();
    let held = std::thread::spawn(move || {
        let _held = block_on(theirs.lock());
        panic!("on purpose");
    });
    held.join().unwrap_err();
    let held = lock.try_lock().unwrap();
    let mut first = Box::pin(lock.lock());
    let mut second = Box::pin(lock.lock());
    assert!(poll_with(first.as_mut(), Waker::noop()).is_pending());
    assert!(poll_with(second.as_mut(), Waker::noop()).is_pending());
    drop(held);
    assert!(lock.try_lock().is_none(), "it is the first one's");
    drop(first);
    let Poll::Ready(held) = poll_with(second.as_mut(), Waker::noop()) else {
        panic!("it is the second one's")
    };
    assert_eq!(
        (*held, format!("{held:?}"), format!("{lock:?}")),
        (1, "1".to_owned(), "Mutex { .. }".to_owned())
    );
}

#[test]
fn many_values_are_received_at_once_and_make_room_for_as_many_senders() {
    let (sender, mut receiver) = mpsc::bounded(4);
    let mut values = vec![0];
    {
        let mut nothing = pin!(receiver.recv_many(&mut values, 10));
        assert!(poll_with(nothing.as_mut(), Waker::noop()).is_pending());
    }
    (1..=4).for_each(|n| sender.try_send(n).unwrap());
    let mut waiting: Vec<_> = (5..=8).map(|n| Box::pin(sender.send(n))).collect();
    for sending in &mut waiting {
        assert!(poll_with(sending.as_mut(), Waker::noop()).is_pending());
    }
    assert_eq!((receiver.len(), receiver.is_closed()), (4, false));
    assert_eq!(block_on(receiver.recv_many(&mut values, 0)), 0);
    assert_eq!(block_on(receiver.recv_many(&mut values, 3)), 3);
    let sent: Vec<_> =
        waiting.iter_mut().map(|sending| poll_with(sending.as_mut(), Waker::noop()).is_ready()).collect();
    assert_eq!(sent, [true, true, true, false]);
    drop(waiting);
    drop(sender);
    assert!(receiver.is_closed() && !receiver.is_empty());
    assert_eq!(block_on(receiver.recv_many(&mut values, 100)), 4);
    assert_eq!(block_on(receiver.recv_many(&mut values, 100)), 0);
    assert_eq!(values, [0, 1, 2, 3, 4, 5, 6, 7]);
}
