//! Tests of the cooperative budget: a task that is always ready does not block others, and a task that awaits
//! many things is not blocked itself.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use wakeloop::runtime::sync::{Notify, mpsc, oneshot};
use wakeloop::runtime::time::{sleep, timeout};
use wakeloop::runtime::{self, Builder, Runtime, block_on, testing, yield_now};
use wakeloop::{join, select};

const LONG: Duration = Duration::from_secs(60);

/// Never completes, and always has something to receive.
async fn busy() {
    let (sender, mut receiver) = mpsc::unbounded();
    loop {
        sender.send(()).unwrap();
        receiver.recv().await;
    }
}

/// Runs `future` in a task. Panics if it does not complete.
fn ends<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    let (done, waiting) = std::sync::mpsc::channel();
    let task = rt.spawn(async move {
        let output = future.await;
        let _ = done.send(());
        output
    });
    let ended = waiting.recv_timeout(LONG);
    task.abort();
    ended.expect("it does not end");
    rt.block_on(task).unwrap()
}

#[test]
fn a_timeout_ends_a_future_that_is_always_busy() {
    ends(timeout(Duration::from_millis(20), busy())).unwrap_err();
}

#[test]
fn the_second_arm_of_a_select_is_polled_beside_a_busy_first() {
    let notify = Arc::new(Notify::new());
    notify.notify_one();
    assert_eq!(
        ends(async move {
            select! {
                () = busy() => "busy",
                () = sleep(LONG) => "timer",
                () = notify.notified() => "notified",
            }
        }),
        "notified"
    );
}

#[test]
fn the_second_part_of_a_join_goes_on_beside_a_busy_first() {
    let (sender, receiver) = oneshot::channel();
    let done = Arc::new(AtomicUsize::new(0));
    let seen = done.clone();
    let both = async move {
        join!(
            async {
                select! { () = busy() => (), _ = receiver => () }
            },
            async move {
                for _ in 0..10 {
                    yield_now().await;
                    let (sender, mut receiver) = mpsc::unbounded();
                    sender.send(1).unwrap();
                    done.fetch_add(receiver.recv().await.unwrap(), SeqCst);
                }
                sender.send(()).unwrap();
            }
        );
    };
    ends(both);
    assert_eq!(seen.load(SeqCst), 10);
}

#[test]
fn a_task_that_waits_for_more_than_its_budget_sleeps_until_one_of_them_comes() {
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..1000 {
        let (sender, receiver) = oneshot::channel();
        senders.push(sender);
        receivers.push(receiver);
    }
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = polls.clone();
    let first = testing::run(1, async move {
        runtime::spawn(async move {
            sleep(LONG).await;
            senders.swap_remove(900).send(7).unwrap();
            sleep(LONG).await;
            drop(senders);
        });
        poll_fn(|cx| {
            counted.fetch_add(1, SeqCst);
            for receiver in &mut receivers {
                if let Poll::Ready(value) = Pin::new(receiver).poll(cx) {
                    return Poll::Ready(value);
                }
            }
            Poll::Pending
        })
        .await
    });
    assert_eq!(first, Ok(7));
    assert_eq!(polls.load(SeqCst), 2);
}

#[test]
fn a_panic_in_block_on_leaves_no_budget_behind_for_what_runs_on_the_thread_later() {
    let thread = std::thread::spawn(|| {
        let rt = Builder::new_current_thread().build().unwrap();
        catch_unwind(AssertUnwindSafe(|| rt.block_on(async { panic!("on purpose") }))).unwrap_err();
        block_on(timeout_by_count(async {
            let (sender, mut receiver) = mpsc::unbounded();
            for _ in 0..1000 {
                sender.send(()).unwrap();
                receiver.recv().await;
            }
        }))
    });
    assert!(thread.join().unwrap());
}

/// Whether the first poll of `future` is ready.
async fn timeout_by_count(future: impl Future<Output = ()>) -> bool {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

#[test]
fn a_busy_task_does_not_keep_others_from_the_only_worker() {
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let busy = rt.spawn(busy());
    rt.block_on(rt.spawn(sleep(Duration::from_millis(5)))).unwrap();
    busy.abort();
    assert!(rt.block_on(busy).unwrap_err().is_cancelled());
    drop::<Runtime>(rt);
}
