//! Tests of wakers as foreign code: whatever is replaced, dropped or woken may use the same object, and no lock is held.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use wakeloop::runtime::net::UnixStream;
use wakeloop::runtime::sync::{Notify, Semaphore, mpsc, oneshot};
use wakeloop::runtime::time::sleep;
use wakeloop::runtime::{Builder, JoinSet, LocalSet, Runtime, block_on, spawn_local};

const LONG: Duration = Duration::from_secs(60);

/// Calls something when the last waker is dropped, and when one is woken.
struct Hooked(Box<dyn Fn() + Send + Sync>);

impl Wake for Hooked {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn hooked(hook: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Hooked(Box::new(hook))))
}

fn poll_with<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Polls twice, each time with another waker, and drops the future.
fn replace_and_drop<F: Future>(future: F, waker: impl Fn() -> Waker) {
    let mut future = Box::pin(future);
    assert!(poll_with(future.as_mut(), &waker()).is_pending());
    assert!(poll_with(future.as_mut(), &waker()).is_pending());
    drop(future);
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

fn runtime() -> Runtime {
    Builder::new().worker_threads(2).build().unwrap()
}

/// Counts the calls of a hook.
fn counted(hook: impl Fn() + Send + Sync + Clone + 'static) -> (Arc<AtomicUsize>, impl Fn() -> Waker) {
    let count = Arc::new(AtomicUsize::new(0));
    let ours = count.clone();
    let waker = move || {
        let (count, hook) = (ours.clone(), hook.clone());
        hooked(move || {
            hook();
            count.fetch_add(1, SeqCst);
        })
    };
    (count, waker)
}

#[test]
fn a_waker_of_a_sleep_may_use_the_timers() {
    ends(|| {
        let rt = runtime();
        let handle = rt.handle();
        let ours = handle.clone();
        let (count, waker) = counted(move || {
            ours.enter(|| {
                let mut another = pin!(sleep(LONG));
                assert!(poll_with(another.as_mut(), Waker::noop()).is_pending());
            });
        });
        handle.enter(|| replace_and_drop(sleep(LONG), &waker));
        assert_eq!(count.load(SeqCst), 2);
        // It fires: the driver wakes it.
        let mut short = Box::pin(sleep(Duration::from_millis(2)));
        assert!(handle.enter(|| poll_with(short.as_mut(), &waker())).is_pending());
        while count.load(SeqCst) < 4 {
            std::thread::yield_now();
        }
        assert_eq!(rt.metrics().timers_armed, 0);
    });
}

#[test]
fn wakers_of_sleeps_may_use_the_timers_while_their_runtime_ends() {
    ends(|| {
        let rt = runtime();
        let handle = rt.handle();
        let ours = handle.clone();
        let (count, waker) = counted(move || {
            ours.enter(|| {
                // It is refused, and panics: the hook is called by a closed driver.
                let mut another = Box::pin(sleep(LONG));
                let polled = std::panic::AssertUnwindSafe(|| poll_with(another.as_mut(), Waker::noop()));
                let _ = std::panic::catch_unwind(polled);
            });
        });
        let mut sleeps: Vec<_> = (0..3).map(|_| Box::pin(sleep(LONG))).collect();
        for sleep in &mut sleeps {
            assert!(handle.enter(|| poll_with(sleep.as_mut(), &waker())).is_pending());
        }
        drop(rt);
        // Each was woken and dropped.
        assert_eq!(count.load(SeqCst), 6);
    });
}

#[test]
fn a_waker_of_a_socket_may_use_the_socket() {
    ends(|| {
        let rt = runtime();
        let (one, other) = rt.block_on(async { UnixStream::pair().unwrap() });
        let one = Arc::new(one);
        let ours = one.clone();
        let (count, waker) = counted(move || {
            let mut buffer = [0; 1];
            let mut reading = pin!(ours.read(&mut buffer));
            let _ = poll_with(reading.as_mut(), Waker::noop());
        });
        let mut buffer = [0; 1];
        replace_and_drop(one.read(&mut buffer), &waker);
        assert_eq!(count.load(SeqCst), 2);
        let mut buffer = [0; 1];
        let mut reading = Box::pin(one.read(&mut buffer));
        assert!(poll_with(reading.as_mut(), &waker()).is_pending());
        drop(other);
        while count.load(SeqCst) < 4 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_waker_of_a_receiver_may_send() {
    ends(|| {
        let (sender, receiver) = oneshot::channel::<u8>();
        let sender = Arc::new(Mutex::new(Some(sender)));
        let (count, waker) = counted(move || {
            let taken = sender.lock().unwrap().take();
            if let Some(sender) = taken {
                let _ = sender.send(1);
            }
        });
        let mut receiver = Box::pin(receiver);
        assert!(poll_with(receiver.as_mut(), &waker()).is_pending());
        // The first waker is replaced, and sends.
        let first = poll_with(receiver.as_mut(), Waker::noop());
        assert!(first.is_pending() && count.load(SeqCst) == 1);
        assert_eq!(poll_with(receiver.as_mut(), Waker::noop()), Poll::Ready(Ok(1)));
    });
}

#[test]
fn a_waker_of_a_set_may_abort_its_tasks() {
    ends(|| {
        let rt = runtime();
        let mut set = JoinSet::new();
        let abort = set.spawn_on(std::future::pending::<()>(), &rt.handle());
        let (count, waker) = counted(move || abort.abort());
        let mut joining = Box::pin(set.join_next());
        assert!(poll_with(joining.as_mut(), &waker()).is_pending());
        assert!(poll_with(joining.as_mut(), Waker::noop()).is_pending() || count.load(SeqCst) > 0);
        assert!(block_on(joining).is_some_and(|ended| ended.is_err()));
    });
}

#[test]
fn a_waker_of_a_local_set_may_wake_its_tasks() {
    ends(|| {
        let notify = Arc::new(Notify::new());
        let theirs = notify.clone();
        let (count, waker) = counted(move || theirs.notify_waiters());
        let local = LocalSet::new();
        let mut running = Box::pin(local.run_until(async {
            let task = spawn_local(async move {
                loop {
                    notify.notified().await;
                }
            });
            task.await.unwrap()
        }));
        for _ in 0..5 {
            assert!(poll_with(running.as_mut(), &waker()).is_pending());
        }
        drop(running);
        assert!(count.load(SeqCst) >= 5);
    });
}

#[test]
fn permits_near_the_largest_number_are_neither_lost_nor_made() {
    let semaphore = Semaphore::new(usize::MAX);
    let all = semaphore.try_acquire(usize::MAX).unwrap();
    assert_eq!(semaphore.available(), 0);
    let mut waiting = Box::pin(semaphore.acquire(usize::MAX));
    assert!(poll_with(waiting.as_mut(), Waker::noop()).is_pending());
    semaphore.release(1);
    assert!(poll_with(waiting.as_mut(), Waker::noop()).is_pending());
    // One more than there is room for: the count saturates.
    drop(all);
    let Poll::Ready(all) = poll_with(waiting.as_mut(), Waker::noop()) else { panic!("nothing was granted") };
    assert_eq!(semaphore.available(), 0);
    assert!(semaphore.try_acquire(1).is_none());
    drop(all);
    assert_eq!(semaphore.available(), usize::MAX);
}

#[test]
fn a_granted_place_of_a_sender_that_goes_is_used_by_the_next() {
    // For each moment at which the first sender may go: before it is granted, after, and after a close.
    for moment in 0..3 {
        let (sender, mut receiver) = mpsc::bounded::<u8>(1);
        sender.try_send(0).unwrap();
        let mut first = Box::pin(sender.send(1));
        let mut second = Box::pin(sender.send(2));
        assert!(poll_with(first.as_mut(), Waker::noop()).is_pending());
        assert!(poll_with(second.as_mut(), Waker::noop()).is_pending());
        if moment > 0 {
            assert_eq!(receiver.try_recv(), Some(0));
        }
        if moment == 2 {
            receiver.close();
        }
        drop(first);
        if moment == 0 {
            assert_eq!(receiver.try_recv(), Some(0));
        }
        let Poll::Ready(sent) = poll_with(second.as_mut(), Waker::noop()) else {
            panic!("no place was passed on in case {moment}")
        };
        assert_eq!(sent.is_ok(), moment < 2);
        assert_eq!(receiver.try_recv(), (moment < 2).then_some(2));
        drop(second);
        assert_eq!(sender.try_send(3).is_ok(), moment < 2);
    }
    // And one whose value is dropped with it is not sent later.
    let (sender, mut receiver) = mpsc::bounded::<u8>(1);
    sender.try_send(0).unwrap();
    let mut sending = Box::pin(sender.send(1));
    assert!(poll_with(sending.as_mut(), Waker::noop()).is_pending());
    drop(sending);
    drop(sender);
    assert_eq!(block_on(poll_fn(|cx| receiver.poll_recv(cx))), Some(0));
    assert_eq!(block_on(poll_fn(|cx| receiver.poll_recv(cx))), None);
}
