//! Tests of fairness, wakeups under stress, idleness, and of which worker runs what.

mod common;

use std::future::{Future, pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use common::runtimes;
use wakeloop::runtime::net::UnixStream;
use wakeloop::runtime::sync::{Notify, Semaphore, mpsc, oneshot};
use wakeloop::runtime::time::{sleep, sleep_until, timeout};
use wakeloop::runtime::{self, Builder, block_on, yield_now};

const LONG: Duration = Duration::from_secs(if cfg!(miri) { 300 } else { 30 });

#[test]
#[cfg_attr(miri, ignore = "it takes too many polls")]
fn tasks_that_always_wake_themselves_starve_neither_timers_nor_sockets_nor_others() {
    for rt in runtimes() {
        let stop = Arc::new(AtomicBool::new(false));
        let busy: Vec<_> = (0..4)
            .map(|n| {
                let stop = stop.clone();
                rt.spawn(async move {
                    while !stop.load(SeqCst) {
                        if n % 2 == 0 {
                            yield_now().await;
                        } else {
                            // Always ready: only the budget makes it yield.
                            let (sender, receiver) = oneshot::channel();
                            sender.send(()).unwrap();
                            receiver.await.unwrap();
                        }
                    }
                })
            })
            .collect();
        let checked = rt.spawn(async {
            timeout(LONG, async {
                sleep(Duration::from_millis(2)).await;
                let (a, b) = UnixStream::pair().unwrap();
                let reader = runtime::spawn(async move {
                    let mut buffer = [0; 1];
                    b.read_exact(&mut buffer).await.unwrap();
                });
                sleep(Duration::from_millis(1)).await;
                a.write_all(b"x").await.unwrap();
                reader.await.unwrap();
            })
            .await
        });
        rt.block_on(checked).unwrap().unwrap();
        stop.store(true, SeqCst);
        rt.block_on(async {
            for task in busy {
                task.await.unwrap();
            }
        });
    }
}

/// Counted in polls, not in time, so that a slow machine makes no difference.
#[test]
#[cfg_attr(miri, ignore = "it takes too many polls")]
fn eight_tasks_that_always_wake_themselves_delay_a_timer_and_a_socket_by_few_polls() {
    const MOST: usize = 4 * 127 + 8;
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let (stop, polls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    // The busy tasks note this first: the number of polls when the deadline had passed.
    let (due, seen) = (Arc::new(std::sync::Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
    let busy: Vec<_> = (0..8)
        .map(|_| {
            let (stop, polls, due, seen) = (stop.clone(), polls.clone(), due.clone(), seen.clone());
            rt.spawn(poll_fn(move |cx| {
                let now = polls.fetch_add(1, SeqCst) + 1;
                let mut due = due.lock().unwrap();
                if due.is_some_and(|due| Instant::now() >= due) {
                    seen.store(now, SeqCst);
                    *due = None;
                }
                drop(due);
                if stop.load(SeqCst) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            }))
        })
        .collect();
    let checked = rt.spawn({
        let polls = polls.clone();
        async move {
            let (a, b) = UnixStream::pair().unwrap();
            // The clock sets when a deadline is checked. The first few checks may still be adjusting the
            // interval.
            for round in 0..60 {
                let deadline = Instant::now() + Duration::from_micros(500);
                *due.lock().unwrap() = Some(deadline);
                sleep_until(deadline).await;
                let late = polls.load(SeqCst).saturating_sub(seen.load(SeqCst));
                // The reader waits in the driver when the byte is sent.
                let mut buffer = [0; 1];
                let before = AtomicUsize::new(0);
                let reading = async {
                    b.read_exact(&mut buffer).await.unwrap();
                    polls.load(SeqCst) - before.load(SeqCst)
                };
                let writing = async {
                    yield_now().await;
                    before.store(polls.load(SeqCst), SeqCst);
                    a.write_all(b"x").await.unwrap();
                };
                let (waited, ()) = wakeloop::join!(reading, writing);
                assert!(round < 10 || late <= MOST, "the timer waited for {late} polls");
                assert!(round < 10 || waited <= MOST, "the socket waited for {waited} polls");
            }
        }
    });
    rt.block_on(async {
        timeout(LONG, checked).await.unwrap().unwrap();
        stop.store(true, SeqCst);
        for task in busy {
            task.await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "it takes too many polls")]
fn a_flood_from_outside_does_not_wait_for_a_busy_poll_per_task() {
    const FLOOD: usize = 5000;
    let rt = Builder::new_current_thread().build().unwrap();
    let (stop, polls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let (stop, polls) = (stop.clone(), polls.clone());
            rt.spawn(async move {
                while !stop.load(SeqCst) {
                    polls.fetch_add(1, SeqCst);
                    std::thread::sleep(Duration::from_micros(50));
                    yield_now().await;
                }
            })
        })
        .collect();
    // In the injector before any worker runs.
    let flood: Vec<_> = (0..FLOOD).map(|_| rt.spawn(async {})).collect();
    rt.block_on(async {
        for task in flood {
            task.await.unwrap();
        }
        stop.store(true, SeqCst);
        for task in busy {
            task.await.unwrap();
        }
    });
    let polls = polls.load(SeqCst);
    assert!(polls < FLOOD / 4, "{polls} polls of busy tasks before {FLOOD} others had theirs");
}

#[test]
#[cfg_attr(miri, ignore = "it is about time")]
fn when_polls_become_long_a_spawned_task_waits_for_only_a_few_of_them() {
    const LONG_POLL: Duration = Duration::from_micros(300);
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let (now_long, short_are_over) = std::sync::mpsc::channel();
    let busy = rt.spawn({
        let polls = polls.clone();
        async move {
            for _ in 0..10 {
                for _ in 0..2_000 {
                    yield_now().await;
                }
                now_long.send(()).unwrap();
                for _ in 0..200 {
                    let start = Instant::now();
                    while start.elapsed() < LONG_POLL {
                        std::hint::spin_loop();
                    }
                    polls.fetch_add(1, SeqCst);
                    yield_now().await;
                }
            }
        }
    });
    let mut most = 0;
    while short_are_over.recv().is_ok() {
        let when_run = rt.spawn({
            let polls = polls.clone();
            async move { polls.load(SeqCst) }
        });
        // Only now: this thread may have been delayed for any number of polls before it spawned.
        let before = polls.load(SeqCst);
        most = most.max(rt.block_on(when_run).unwrap().saturating_sub(before));
    }
    rt.block_on(busy).unwrap();
    assert!(most <= 20, "{most} polls came first");
}

#[test]
fn two_tasks_that_wake_each_other_let_a_third_run() {
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (a, b) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let players: Vec<_> = [(a.clone(), b.clone()), (b.clone(), a.clone())]
        .into_iter()
        .map(|(mine, theirs)| {
            let stop = stop.clone();
            rt.spawn(async move {
                while !stop.load(SeqCst) {
                    theirs.notify_one();
                    mine.notified().await;
                }
                theirs.notify_one();
            })
        })
        .collect();
    let third = rt.spawn(async move {
        for _ in 0..if cfg!(miri) { 5 } else { 100 } {
            yield_now().await;
        }
    });
    rt.block_on(async { timeout(LONG, third).await }).unwrap().unwrap();
    stop.store(true, SeqCst);
    rt.block_on(async {
        for player in players {
            timeout(LONG, player).await.unwrap().unwrap();
        }
    });
}

#[test]
fn no_wakeup_is_lost_when_threads_and_workers_fall_asleep_and_wake_all_the_time() {
    for workers in [1, 2, 4] {
        let rt = Builder::new().worker_threads(workers).build().unwrap();
        let deadline = Instant::now() + Duration::from_millis(700);
        let mut rounds = 0u32;
        while Instant::now() < deadline || cfg!(miri) && rounds <= 10 {
            // Each round lets most workers go to sleep in between.
            let (to_task, from_thread) = oneshot::channel();
            let task = rt.spawn(async move {
                let n: u32 = from_thread.await.unwrap();
                runtime::spawn(async move { n + 1 }).await.unwrap()
            });
            if rounds.is_multiple_of(7) {
                std::thread::sleep(Duration::from_micros(u64::from(rounds % 90)));
            }
            to_task.send(rounds).unwrap();
            let joined = rt.block_on(async { timeout(LONG, task).await.expect("a wakeup was lost") });
            assert_eq!(joined.unwrap(), rounds + 1);
            rounds += 1;
        }
        assert!(rounds > 10);
    }
}

#[test]
fn messages_go_round_a_ring_of_tasks_without_getting_stuck() {
    for rt in runtimes() {
        const TASKS: u32 = if cfg!(miri) { 5 } else { 50 };
        let (first, mut inbox) = mpsc::bounded::<u32>(1);
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let (next, receiver) = mpsc::bounded(1);
            let mut mine = std::mem::replace(&mut inbox, receiver);
            tasks.push(rt.spawn(async move {
                while let Some(n) = mine.recv().await {
                    next.send(n + 1).await.unwrap();
                }
            }));
        }
        rt.block_on(async {
            for lap in 0..if cfg!(miri) { 5 } else { 100 } {
                first.send(lap).await.unwrap();
                let arrived = timeout(LONG, inbox.recv()).await.expect("stuck");
                assert_eq!(arrived, Some(lap + TASKS));
            }
            drop(first);
            for task in tasks {
                timeout(LONG, task).await.unwrap().unwrap();
            }
        });
    }
}

#[test]
fn several_threads_spawn_at_once() {
    const EACH: u64 = if cfg!(miri) { 15 } else { 2000 };
    let rt = Builder::new().worker_threads(2).build().unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (handle, done) = (rt.handle(), done.clone());
            scope.spawn(move || {
                let tasks: Vec<_> = (0..EACH)
                    .map(|_| {
                        let done = done.clone();
                        handle.spawn(async move { done.fetch_add(1, SeqCst) })
                    })
                    .collect();
                for task in tasks {
                    block_on(task).unwrap();
                }
            });
        }
    });
    assert_eq!(done.load(SeqCst) as u64, 4 * EACH);
    let metrics = rt.metrics();
    assert_eq!((metrics.tasks_spawned, metrics.tasks_completed), (4 * EACH, 4 * EACH));
    assert!(metrics.injected >= 4 * EACH && metrics.polls >= 4 * EACH);
}

#[test]
fn a_long_poll_does_not_hold_up_what_it_spawned_before() {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let seen = ran.clone();
    let task = rt.spawn(async move {
        for _ in 0..10 {
            let ran = seen.clone();
            runtime::spawn(async move { ran.fetch_add(1, SeqCst) });
        }
        let deadline = Instant::now() + LONG;
        // All tasks but the last one spawned can be stolen while this worker is busy.
        while seen.load(SeqCst) < 9 && Instant::now() < deadline {
            std::hint::spin_loop();
        }
        seen.load(SeqCst)
    });
    assert!(rt.block_on(task).unwrap() >= 9);
}

#[test]
#[cfg_attr(miri, ignore = "it has no socket pairs that do not wait")]
fn a_long_poll_holds_up_neither_timers_nor_sockets_while_another_worker_is_free() {
    // First, the driver is used for the first time during a long poll. Then, many times, with both workers
    // asleep before.
    for round in 0..20 {
        let rt = Builder::new().worker_threads(2).build().unwrap();
        if round > 0 {
            rt.block_on(async { runtime::spawn(sleep(Duration::from_millis(1))).await.unwrap() });
            std::thread::sleep(Duration::from_millis(2));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let hogging = rt.spawn(async move {
            let deadline = Instant::now() + LONG;
            while !stopped.load(SeqCst) && Instant::now() < deadline {
                std::hint::spin_loop();
            }
            stopped.load(SeqCst)
        });
        rt.block_on(async {
            sleep(Duration::from_millis(1)).await;
            let (a, b) = UnixStream::pair().unwrap();
            let reading = runtime::spawn(async move { b.read(&mut [0; 1]).await });
            sleep(Duration::from_millis(1)).await;
            a.write_all(b"x").await.unwrap();
            assert_eq!(timeout(LONG, reading).await.unwrap().unwrap().unwrap(), 1);
        });
        stop.store(true, SeqCst);
        assert!(block_on(hogging).unwrap(), "round {round}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "it has no socket pairs that do not wait")]
fn a_long_poll_that_the_driver_woke_holds_up_neither_timers_nor_sockets_while_another_worker_is_free() {
    for round in 0..12 {
        let rt = Builder::new().worker_threads(2 + round % 2).build().unwrap();
        let stop = Arc::new(AtomicUsize::new(0));
        let (stopped, by_timer, by_socket) = (stop.clone(), stop.clone(), stop.clone());
        let (hog_end, quick_end) = (rt.handle().enter(UnixStream::pair), rt.handle().enter(UnixStream::pair));
        let ((hog_near, hog_far), (quick_near, quick_far)) = (hog_end.unwrap(), quick_end.unwrap());
        let hogging = rt.spawn(async move {
            if round % 4 < 2 {
                sleep(Duration::from_millis(10)).await;
            } else {
                hog_far.read(&mut [0; 1]).await.unwrap();
            }
            let deadline = Instant::now() + LONG / 2;
            while stopped.load(SeqCst) < 2 && Instant::now() < deadline {
                std::hint::spin_loop();
            }
            stopped.load(SeqCst)
        });
        rt.spawn(async move {
            sleep(Duration::from_millis(30)).await;
            by_timer.fetch_add(1, SeqCst);
        });
        rt.spawn(async move {
            quick_far.read(&mut [0; 1]).await.unwrap();
            by_socket.fetch_add(1, SeqCst);
        });
        // All of this reaches the runtime only through its driver.
        std::thread::sleep(Duration::from_millis(10));
        hog_near.try_write(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        quick_near.try_write(b"x").unwrap();
        assert_eq!(block_on(hogging).unwrap(), 2, "round {round}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "it has no socket pairs that do not wait")]
fn what_comes_from_the_driver_with_a_long_poll_is_taken_by_a_worker_that_is_free() {
    for round in 0..20 {
        let rt = Builder::new().worker_threads(2).build().unwrap();
        let pair = || rt.handle().enter(UnixStream::pair).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let (near, far) = pair();
        let (ends, tasks): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (end, other_end) = pair();
                let ran = ran.clone();
                let task = rt.spawn(async move {
                    other_end.read(&mut [0; 1]).await.unwrap();
                    let first = ran.fetch_add(1, SeqCst) == 0;
                    let deadline = Instant::now() + LONG / 2;
                    while first && ran.load(SeqCst) < 2 && Instant::now() < deadline {
                        std::hint::spin_loop();
                    }
                    ran.load(SeqCst)
                });
                (end, task)
            })
            .unzip();
        rt.spawn(async move {
            while matches!(far.read(&mut [0; 1]).await, Ok(1)) && far.write_all(b"x").await.is_ok() {}
        });
        rt.spawn(async move {
            // Short polls, each woken by the driver. After these a worker does not wake another for one more of
            // them.
            for _ in 0..300 {
                near.write_all(b"x").await.unwrap();
                near.read(&mut [0; 1]).await.unwrap();
            }
            // The driver brings both at once, and nothing after them.
            ends.iter().for_each(|end| assert_eq!(end.try_write(b"x").unwrap(), 1));
            pending::<()>().await;
        });
        for task in tasks {
            assert_eq!(block_on(task).unwrap(), 2, "round {round}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "it is about time")]
fn a_runtime_has_the_threads_that_its_work_needs() {
    let started = Arc::new(AtomicUsize::new(0));
    let on_start = started.clone();
    let rt = Builder::new()
        .worker_threads(8)
        .on_thread_start(move || _ = on_start.fetch_add(1, SeqCst))
        .build()
        .unwrap();
    for _ in 0..10 {
        rt.block_on(async { runtime::spawn(async { yield_now().await }).await.unwrap() });
        // The worker that ran it goes to sleep.
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(started.load(SeqCst) < 8, "a thread for every worker, with one task at a time");
    let together = Arc::new(std::sync::Barrier::new(8));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let together = together.clone();
            rt.spawn(async move { together.wait() })
        })
        .collect();
    for task in tasks {
        block_on(task).unwrap();
    }
    assert_eq!(started.load(SeqCst), 8);
}

/// Returns how often the threads with this name prefix have gone to sleep, where the system reports it.
fn times_slept(prefix: &str) -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let of = |task: std::path::PathBuf| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let slept = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        name.starts_with(prefix).then(|| slept.trim().parse().unwrap_or(0))
    };
    tasks.flatten().filter_map(|task| of(task.path())).sum()
}

#[test]
#[cfg_attr(miri, ignore = "it is about time")]
fn an_idle_runtime_sleeps() {
    for rt in [Builder::new().worker_threads(1), Builder::new().worker_threads(4)] {
        let rt = rt.thread_name("asleep").build().unwrap();
        rt.block_on(async {
            let (_a, b) = UnixStream::pair().unwrap();
            let reader = runtime::spawn(async move { b.read(&mut [0; 1]).await });
            let sleeper = runtime::spawn(sleep(LONG));
            sleep(Duration::from_millis(50)).await;
            reader.abort();
            sleeper.abort();
            let _ = reader.await;
        });
        std::thread::sleep(Duration::from_millis(100));
        let (before, switches) = (rt.metrics(), times_slept("asleep"));
        std::thread::sleep(Duration::from_millis(300));
        let after = rt.metrics();
        assert_eq!(times_slept("asleep"), switches);
        assert_eq!(before.wakeups, after.wakeups);
        assert_eq!(before.polls, after.polls);
    }
}

#[test]
fn a_budget_is_given_back_between_polls() {
    // More than several budgets.
    const COUNT: u64 = if cfg!(miri) { 500 } else { 1000 };
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let seen = polls.clone();
    let task = rt.spawn(async move {
        let (sender, mut receiver) = mpsc::unbounded();
        for n in 0..COUNT {
            sender.send(n).unwrap();
        }
        drop(sender);
        let mut sum = 0;
        poll_fn(|cx| {
            seen.fetch_add(1, SeqCst);
            loop {
                match receiver.poll_recv(cx) {
                    Poll::Ready(Some(n)) => sum += n,
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        sum
    });
    assert_eq!(rt.block_on(task).unwrap(), (COUNT - 1) * COUNT / 2);
    assert!(polls.load(SeqCst) > 3, "all messages in {} polls", polls.load(SeqCst));
}

#[test]
fn two_threads_can_block_on_a_runtime_without_threads() {
    let rt = Builder::new_current_thread().build().unwrap();
    let (sender, receiver) = oneshot::channel();
    std::thread::scope(|scope| {
        let handle = rt.handle();
        scope.spawn(move || {
            handle.block_on(async {
                sleep(Duration::from_millis(20)).await;
                runtime::spawn(async move { sender.send(1).unwrap() }).await.unwrap();
            });
        });
        let handle = rt.handle();
        scope.spawn(move || {
            assert_eq!(handle.block_on(async { timeout(LONG, receiver).await }), Ok(Ok(1)));
            handle.block_on(sleep(Duration::from_millis(5)));
        });
    });
}

/// A task of one runtime works in the context of another, and a task of that one in a local set of its own.
#[test]
fn the_runtime_that_was_entered_last_is_the_one_that_is_used() {
    // A simulated runtime would take the wait for another runtime for a deadlock.
    for outer in runtimes().into_iter().take(3) {
        let inner = Builder::new().worker_threads(1).build().unwrap();
        let (there, here) = (inner.handle(), outer.handle());
        let task = outer.spawn(async move {
            there.enter(|| runtime::spawn(async {})).await.unwrap();
            there.spawn_here(async { drop(runtime::spawn(async {})) }).await.unwrap();
            here.enter(|| there.enter(|| runtime::spawn(async {}))).await.unwrap();
            // The context was left again.
            runtime::spawn(async {}).await.unwrap();
        });
        outer.block_on(task).unwrap();
        assert_eq!((outer.metrics().tasks_spawned, inner.metrics().tasks_spawned), (2, 4));
    }
}

#[test]
fn block_on_inside_a_task_is_refused() {
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let handle = rt.handle();
    let error = rt.block_on(rt.spawn(async move { handle.block_on(async {}) })).unwrap_err();
    assert!(error.is_panic());
}

#[test]
fn a_semaphore_never_gives_more_than_it_has() {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    let semaphore = Arc::new(Semaphore::new(3));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..if cfg!(miri) { 10 } else { 100 })
        .map(|n| {
            let (semaphore, now, most) = (semaphore.clone(), now.clone(), most.clone());
            runtime::Handle::spawn(&rt.handle(), async move {
                let _permit = semaphore.acquire(1 + n % 3).await;
                most.fetch_max(now.fetch_add(1 + n % 3, SeqCst) + 1 + n % 3, SeqCst);
                yield_now().await;
                now.fetch_sub(1 + n % 3, SeqCst);
            })
        })
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        if n % 10 == 0 {
            task.abort();
        }
        let _ = rt.block_on(async { timeout(LONG, task).await.expect("stuck") });
    }
    assert!(most.load(SeqCst) <= 3 || now.load(SeqCst) > 0);
    assert_eq!(semaphore.available(), 3);
}

#[test]
fn a_notification_for_a_dropped_waiter_goes_to_the_next() {
    let notify = Notify::new();
    block_on(async {
        let mut first = Box::pin(notify.notified());
        let mut second = Box::pin(notify.notified());
        poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending());
            assert!(second.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        notify.notify_one();
        drop(first);
        second.await;
        notify.notify_one();
        notify.notified().await;
    });
}
