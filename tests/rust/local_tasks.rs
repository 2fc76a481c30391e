//! Tests of local sets, task locals and files.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use wakeloop::runtime::sync::{Notify, oneshot};
use wakeloop::runtime::time::{sleep, timeout};
use wakeloop::runtime::{self, Builder, LocalSet, Runtime, block_on, fs, spawn_local, testing, yield_now};

const LONG: Duration = Duration::from_secs(if cfg!(miri) { 300 } else { 30 });

struct CountedDrop(Rc<Cell<usize>>);

impl Drop for CountedDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new().worker_threads(2)].map(|builder| builder.build().unwrap())
}

#[test]
fn local_tasks_share_what_is_not_send() {
    for rt in runtimes() {
        let seen = LocalSet::new();
        let order = Rc::new(RefCell::new(Vec::new()));
        let theirs = order.clone();
        rt.block_on(seen.run_until(async move {
            let tasks: Vec<_> = (0..3)
                .map(|n| {
                    let order = theirs.clone();
                    spawn_local(async move {
                        for _ in 0..2 {
                            order.borrow_mut().push(n);
                            yield_now().await;
                        }
                        Rc::new(n)
                    })
                })
                .collect();
            for (n, task) in tasks.into_iter().enumerate() {
                assert_eq!(*task.await.unwrap(), n);
            }
        }));
        assert_eq!(*order.borrow(), [0, 1, 2, 0, 1, 2]);
    }
}

#[test]
fn a_local_task_is_woken_from_other_threads_timers_and_sockets() {
    for rt in runtimes() {
        let local = LocalSet::new();
        let done = rt.block_on(local.run_until(timeout(LONG, async {
            for _ in 0..if cfg!(miri) { 5 } else { 200 } {
                let (sender, receiver) = oneshot::channel();
                let not_send = Rc::new(1);
                let waiting = spawn_local(async move { receiver.await.unwrap() + *not_send });
                let sending = runtime::spawn_blocking(move || sender.send(41).unwrap());
                assert_eq!(waiting.await.unwrap(), 42);
                sending.await.unwrap();
            }
            spawn_local(async { sleep(Duration::from_millis(2)).await }).await.unwrap();
        })));
        assert!(done.is_ok());
    }
}

#[test]
fn a_local_task_can_be_aborted_from_another_thread_and_is_dropped_on_its_own() {
    struct OnThread(std::thread::ThreadId, Arc<AtomicUsize>);
    impl Drop for OnThread {
        fn drop(&mut self) {
            assert_eq!(std::thread::current().id(), self.0);
            self.1.fetch_add(1, SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let local = LocalSet::new();
    block_on(local.run_until(async {
        let guard = OnThread(std::thread::current().id(), drops.clone());
        let task = spawn_local(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        yield_now().await;
        let abort = task.abort_handle();
        std::thread::spawn(move || abort.abort()).join().unwrap();
        assert!(task.await.unwrap_err().is_cancelled());
    }));
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_panic_in_a_local_task_reaches_its_handle() {
    let local = LocalSet::new();
    let error = block_on(local.run_until(async {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let error = spawn_local(async { panic!("local") }).await.unwrap_err();
        std::panic::set_hook(quiet);
        error
    }));
    assert_eq!(error.panic_message(), Some("local"));
}

#[test]
fn dropping_a_set_drops_each_future_once_while_others_wake_them() {
    let drops = Rc::new(Cell::new(0));
    for _ in 0..if cfg!(miri) { 4 } else { 50 } {
        let local = LocalSet::new();
        let notify = Arc::new(Notify::new());
        drops.set(0);
        for _ in 0..20 {
            let (guard, notify) = (CountedDrop(drops.clone()), notify.clone());
            drop(local.spawn_local(async move {
                let _guard = guard;
                loop {
                    notify.notified().await;
                }
            }));
        }
        block_on(local.run_until(yield_now()));
        let waker = std::thread::spawn(move || (0..50).for_each(|_| notify.notify_waiters()));
        drop(local);
        assert_eq!(drops.get(), 20);
        waker.join().unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "it takes too many polls")]
fn a_local_task_that_is_always_ready_starves_neither_the_root_nor_a_timer() {
    for rt in runtimes() {
        let local = LocalSet::new();
        let done = rt.block_on(local.run_until(timeout(LONG, async {
            let stop = Rc::new(Cell::new(false));
            let theirs = stop.clone();
            let busy = spawn_local(async move {
                while !theirs.get() {
                    let (sender, receiver) = oneshot::channel();
                    sender.send(()).unwrap();
                    receiver.await.unwrap();
                }
            });
            sleep(Duration::from_millis(2)).await;
            stop.set(true);
            busy.await.unwrap();
        })));
        assert!(done.is_ok());
    }
}

#[test]
fn two_run_untils_of_one_set_share_its_tasks() {
    let local = LocalSet::new();
    let (a, b) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
    let sum = block_on(async {
        let first = local.run_until(async {
            let (a, b) = (a.clone(), b.clone());
            spawn_local(async move {
                a.notified().await;
                b.notify_one();
                1
            })
            .await
            .unwrap()
        });
        let second = local.run_until(async {
            a.notify_one();
            b.notified().await;
            2
        });
        let (one, two) = wakeloop::join!(first, second);
        one + two
    });
    assert_eq!(sum, 3);
}

#[test]
fn spawn_local_outside_of_a_set_panics() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let refused = std::panic::catch_unwind(|| drop(spawn_local(async {})));
    std::panic::set_hook(quiet);
    assert!(refused.is_err());
}

wakeloop::task_local! {
    static NUMBER: u32;
    static TEXT: String;
}

#[test]
fn a_task_local_follows_its_task_and_is_seen_by_no_other() {
    for rt in runtimes() {
        let tasks: Vec<_> = (0..if cfg!(miri) { 5 } else { 50 })
            .map(|n| {
                rt.spawn(NUMBER.scope(n, async move {
                    for _ in 0..20 {
                        assert_eq!(NUMBER.get(), n);
                        yield_now().await;
                    }
                    assert!(TEXT.try_with(String::len).is_err());
                    // Spawned tasks do not inherit it.
                    runtime::spawn(async { NUMBER.try_with(|_| ()).is_err() }).await.unwrap()
                }))
            })
            .collect();
        rt.block_on(async {
            for task in tasks {
                assert!(task.await.unwrap());
            }
        });
    }
}

#[test]
fn task_locals_nest_and_are_there_when_the_future_is_dropped() {
    struct Reads(Arc<AtomicUsize>);
    impl Drop for Reads {
        fn drop(&mut self) {
            self.0.fetch_add(NUMBER.get() as usize, SeqCst);
        }
    }
    let sum = Arc::new(AtomicUsize::new(0));
    let reads = Reads(sum.clone());
    block_on(NUMBER.scope(1, async {
        let inner = NUMBER.scope(20, async move {
            let _reads = reads;
            assert_eq!(NUMBER.get(), 20);
            std::future::pending::<()>().await;
        });
        wakeloop::select! {
            _ = inner => unreachable!(),
            _ = yield_now() => assert_eq!(NUMBER.get(), 1),
        }
        assert_eq!(NUMBER.sync_scope(3, || NUMBER.get()), 3);
        assert_eq!(NUMBER.get(), 1);
    }));
    assert_eq!(sum.load(SeqCst), 20);
    assert!(NUMBER.try_with(|_| ()).is_err());
}

#[test]
fn files_are_read_and_written_through_the_pool() {
    let folder = std::env::temp_dir().join(format!("wakeloop-files-{}", std::process::id()));
    for rt in runtimes() {
        rt.block_on(async {
            fs::create_dir_all(folder.join("deep")).await.unwrap();
            let path = folder.join("deep/file");
            fs::write(&path, "hello").await.unwrap();
            assert_eq!(fs::read_to_string(&path).await.unwrap(), "hello");
            let file = fs::File::create(&path).await.unwrap();
            let jobs: Vec<_> = (0u8..16)
                .map(|n| {
                    let file = file.clone();
                    runtime::spawn(async move { file.write_all_at(u64::from(n) * 1000, vec![n; 1000]).await })
                })
                .collect();
            for job in jobs {
                job.await.unwrap().unwrap();
            }
            file.sync_all().await.unwrap();
            assert_eq!(file.metadata().await.unwrap().len(), 16_000);
            assert_eq!(file.read_at(3_999, 2).await.unwrap(), [3, 4]);
            assert_eq!(file.read_at(15_999, 50).await.unwrap(), [15]);
            assert!(file.read_at(99_999, 50).await.unwrap().is_empty());
            let other = folder.join("other");
            fs::rename(&path, &other).await.unwrap();
            fs::remove_file(&other).await.unwrap();
            let missing = fs::read(&other).await.unwrap_err();
            assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        });
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Each `run_until` is polled with a waker of its own.
#[test]
fn a_set_keeps_no_waker_of_a_run_until_that_has_ended() {
    struct Counted(Arc<AtomicUsize>);
    impl std::task::Wake for Counted {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    let alive = Arc::new(AtomicUsize::new(0));
    let set = LocalSet::new();
    for _ in 0..10 {
        alive.fetch_add(1, SeqCst);
        let waker = std::task::Waker::from(Arc::new(Counted(alive.clone())));
        let mut run = std::pin::pin!(set.run_until(yield_now()));
        let mut context = std::task::Context::from_waker(&waker);
        assert!(run.as_mut().poll(&mut context).is_pending());
        assert!(run.as_mut().poll(&mut context).is_ready());
    }
    assert_eq!(alive.load(SeqCst), 0);
}

#[test]
fn two_run_untils_in_one_task_both_complete() {
    testing::explore(0..if cfg!(miri) { 5 } else { 100 }, || async {
        let set = LocalSet::new();
        let done = Rc::new(Cell::new(0));
        let count = |times| {
            let done = done.clone();
            set.run_until(async move {
                for _ in 0..times {
                    spawn_local(sleep(Duration::from_millis(1))).await.unwrap();
                }
                done.set(done.get() + 1);
            })
        };
        wakeloop::join!(count(1), count(5));
        assert_eq!(done.get(), 2);
    });
}

#[test]
#[should_panic(expected = "in use")]
fn a_scope_inside_of_with_is_refused() {
    NUMBER.sync_scope(1, || NUMBER.with(|_| NUMBER.sync_scope(2, || ())));
}

#[test]
fn a_read_asks_for_no_more_memory_than_the_file_needs() {
    let path = std::env::temp_dir().join(format!("wakeloop-read-at-{}", std::process::id()));
    let content: Vec<u8> = (0..if cfg!(miri) { 5_000 } else { 5_000_000u32 }).map(|n| n as u8).collect();
    let written = content.clone();
    for rt in runtimes() {
        let got = rt.block_on(async {
            let file = fs::File::create(&path).await.unwrap();
            file.write_all_at(0, &written[..]).await.unwrap();
            file.read_at(1, usize::MAX).await
        });
        assert!(got.unwrap() == content[1..]);
    }
    std::fs::remove_file(path).unwrap();
}
