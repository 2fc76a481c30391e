//! Tests of join sets.

mod common;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::runtimes;
use wakeloop::runtime::sync::{Semaphore, oneshot};
use wakeloop::runtime::time::{sleep, timeout};
use wakeloop::runtime::{self, Builder, JoinSet, block_on, yield_now};
use wakeloop::select;

const LONG: Duration = Duration::from_secs(if cfg!(miri) { 300 } else { 30 });

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn outputs_come_in_the_order_in_which_the_tasks_end() {
    for rt in runtimes() {
        rt.block_on(async {
            let mut tasks = JoinSet::new();
            assert!(tasks.join_next().await.is_none() && tasks.try_join_next().is_none());
            let mut senders = Vec::new();
            for n in 0..5 {
                let (sender, receiver) = oneshot::channel::<()>();
                senders.push(Some(sender));
                tasks.spawn(async move {
                    receiver.await.unwrap();
                    n
                });
            }
            assert!(tasks.try_join_next().is_none());
            for n in [3, 0, 4, 1, 2] {
                senders[n].take().unwrap().send(()).unwrap();
                let ended = timeout(LONG, tasks.join_next()).await.unwrap();
                assert_eq!(ended.unwrap().unwrap(), n);
            }
            assert_eq!((tasks.len(), tasks.is_empty()), (0, true));
        });
    }
}

#[test]
fn each_of_thousands_of_tasks_is_returned_once() {
    const COUNT: u64 = if cfg!(miri) { 60 } else { 5000 };
    for rt in runtimes() {
        rt.block_on(async {
            let mut tasks = JoinSet::new();
            let mut sum = 0;
            for n in 0..COUNT {
                tasks.spawn(async move {
                    if n % 2 == 0 {
                        yield_now().await;
                    }
                    n
                });
                // Places are reused while other wakes are still under way.
                if n % 3 == 0 {
                    sum += timeout(LONG, tasks.join_next()).await.unwrap().unwrap().unwrap();
                }
            }
            while let Some(ended) = timeout(LONG, tasks.join_next()).await.unwrap() {
                sum += ended.unwrap();
            }
            assert_eq!(sum, (COUNT - 1) * COUNT / 2);
        });
    }
}

#[test]
fn a_task_that_is_added_while_the_set_is_awaited_is_returned() {
    for rt in runtimes() {
        rt.block_on(async {
            let mut tasks = JoinSet::new();
            tasks.spawn(pending());
            for n in 0..if cfg!(miri) { 6 } else { 50 } {
                select! {
                    _ = tasks.join_next() => unreachable!("it is pending for ever"),
                    () = yield_now() => (),
                }
                if n % 2 == 0 {
                    tasks.spawn(async move {
                        yield_now().await;
                        n
                    });
                } else {
                    // The task has ended by then.
                    let ended = runtime::spawn(async move { n });
                    while !ended.is_finished() {
                        yield_now().await;
                    }
                    tasks.insert(ended);
                }
                assert_eq!(timeout(LONG, tasks.join_next()).await.unwrap().unwrap().unwrap(), n);
            }
        });
    }
}

#[test]
fn dropping_the_set_aborts_its_tasks_and_detaching_them_does_not() {
    for rt in runtimes() {
        let drops = Arc::new(AtomicUsize::new(0));
        let go = Arc::new(Semaphore::new(0));
        rt.block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..10 {
                let guard = Counted(drops.clone());
                tasks.spawn(async move {
                    let _guard = guard;
                    pending::<()>().await;
                });
            }
            yield_now().await;
            drop(tasks);
            timeout(LONG, async {
                while drops.load(SeqCst) < 10 {
                    sleep(Duration::from_millis(1)).await;
                }
            })
            .await
            .unwrap();
            let mut tasks = JoinSet::new();
            for _ in 0..10 {
                let go = go.clone();
                tasks.spawn(async move { go.acquire(1).await.forget() });
            }
            tasks.detach_all();
            drop(tasks);
            go.release(10);
            timeout(LONG, async {
                while go.available() > 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            })
            .await
            .unwrap();
        });
    }
}

#[test]
fn a_shutdown_waits_until_the_futures_are_gone() {
    for rt in runtimes() {
        rt.block_on(async {
            let drops = Arc::new(AtomicUsize::new(0));
            let mut tasks = JoinSet::new();
            for n in 0..10 {
                let guard = Counted(drops.clone());
                tasks.spawn(async move {
                    let _guard = guard;
                    assert!(n > 0, "on purpose");
                    pending::<()>().await;
                });
            }
            timeout(LONG, tasks.shutdown()).await.unwrap();
            assert_eq!((drops.load(SeqCst), tasks.len()), (10, 0));
        });
    }
}

#[test]
fn an_abort_and_a_panic_are_returned_as_errors() {
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn_on(pending::<u8>(), &rt.handle()).abort();
    assert!(block_on(tasks.join_next()).unwrap().unwrap_err().is_cancelled());
    tasks.insert(rt.spawn_blocking(|| panic!("on purpose")));
    assert_eq!(block_on(tasks.join_next()).unwrap().unwrap_err().panic_message(), Some("on purpose"));
    assert!(block_on(tasks.join_next()).is_none());
}
