//! Models of whole runtimes under shuttle: workers, parking, stealing, blocking pool and shutdown, in thousands
//! of random orders. Sockets and clock are real; the driver polls without waiting (see `shim::system_wait`).

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Plain;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::net::UnixStream;
use super::shim::model::{check, thread};
use super::sync::{Notify, Semaphore, mpsc, oneshot};
use super::time::{sleep, timeout};
use super::{Builder, Runtime, spawn, spawn_blocking, yield_now};

const LONG: Duration = Duration::from_secs(1000);

fn runtime(workers: usize) -> Runtime {
    Builder::new().worker_threads(workers).build().unwrap()
}

struct Counted(Arc<Plain>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn tasks_from_outside_and_inside_all_run() {
    check(|| {
        let rt = runtime(2);
        let runs = Arc::new(Plain::new(0));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let runs = runs.clone();
                rt.spawn(async move {
                    let more: Vec<_> = (0..3)
                        .map(|_| {
                            let runs = runs.clone();
                            spawn(async move {
                                yield_now().await;
                                runs.fetch_add(1, SeqCst);
                            })
                        })
                        .collect();
                    for task in more {
                        task.await.unwrap();
                    }
                })
            })
            .collect();
        rt.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        drop(rt);
        assert_eq!(runs.load(SeqCst), 12);
    });
}

#[test]
fn wakes_between_tasks_workers_and_threads_are_not_lost() {
    check(|| {
        let rt = runtime(2);
        let (ask, mut asked) = mpsc::bounded::<oneshot::Sender<usize>>(1);
        let server = rt.spawn(async move {
            let mut served = 0;
            while let Some(answer) = asked.recv().await {
                served += 1;
                answer.send(served).unwrap();
            }
            served
        });
        let outside = thread::spawn({
            let (handle, ask) = (rt.handle(), ask.clone());
            move || {
                let (answer, answered) = oneshot::channel();
                handle.block_on(async {
                    ask.send(answer).await.unwrap();
                    answered.await.unwrap()
                })
            }
        });
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let ask = ask.clone();
                rt.spawn(async move {
                    let (answer, answered) = oneshot::channel();
                    ask.send(answer).await.unwrap();
                    timeout(LONG, answered).await.unwrap().unwrap()
                })
            })
            .collect();
        drop(ask);
        rt.block_on(async {
            for client in clients {
                client.await.unwrap();
            }
        });
        outside.join().unwrap();
        assert_eq!(rt.block_on(server).unwrap(), 3);
    });
}

#[test]
fn every_future_is_dropped_once_when_the_runtime_is_dropped_meanwhile() {
    check(|| {
        let rt = runtime(2);
        let drops = Arc::new(Plain::new(0));
        let guard = || Counted(drops.clone());
        let (one, two, three, four, five) = (guard(), guard(), guard(), guard(), guard());
        rt.spawn(async move {
            let _guard = one;
            sleep(LONG).await;
        });
        rt.spawn(async move {
            let _guard = two;
            let (ours, _theirs) = UnixStream::pair().unwrap();
            ours.read(&mut [0]).await.unwrap();
        });
        rt.spawn(async move {
            let _guard = three;
            spawn(async move {
                let _guard = four;
                pending::<()>().await;
            });
            for _ in 0..5 {
                yield_now().await;
            }
            pending::<()>().await;
        });
        let job = rt.spawn_blocking(move || drop(five));
        job.abort();
        drop(rt);
        assert_eq!(drops.load(SeqCst), 5);
    });
}

#[test]
fn an_abort_races_with_the_end_and_with_the_wake() {
    check(|| {
        let rt = runtime(2);
        let drops = Arc::new(Plain::new(0));
        let (guard, notify) = (Counted(drops.clone()), Arc::new(Notify::new()));
        let task = rt.spawn({
            let notify = notify.clone();
            async move {
                let _guard = guard;
                notify.notified().await;
            }
        });
        let aborting = thread::spawn({
            let abort = task.abort_handle();
            move || abort.abort()
        });
        notify.notify_one();
        if let Err(error) = rt.block_on(task) {
            assert!(error.is_cancelled());
        }
        assert_eq!(drops.load(SeqCst), 1);
        aborting.join().unwrap();
    });
}

#[test]
fn a_semaphore_never_exceeds_its_permits_and_serves_every_waiter() {
    check(|| {
        let rt = runtime(2);
        let (gate, inside) = (Arc::new(Semaphore::new(2)), Arc::new(Plain::new(0)));
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let (gate, inside) = (gate.clone(), inside.clone());
                rt.spawn(async move {
                    let _permit = gate.acquire(1).await;
                    assert!(inside.fetch_add(1, SeqCst) < 2);
                    yield_now().await;
                    inside.fetch_sub(1, SeqCst);
                })
            })
            .collect();
        rt.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn blocking_jobs_all_run_and_their_tasks_go_on() {
    check(|| {
        let rt = Builder::new().worker_threads(1).max_blocking_threads(2).build().unwrap();
        let task = rt.spawn(async {
            let jobs: Vec<_> = (0..4).map(|n| spawn_blocking(move || n)).collect();
            let mut sum = 0;
            for job in jobs {
                sum += job.await.unwrap();
            }
            sum
        });
        assert_eq!(rt.block_on(task).unwrap(), 6);
    });
}
