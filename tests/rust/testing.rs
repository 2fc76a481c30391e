//! Tests of `runtime::testing`: the paused clock, orders from a seed, and deadlocks.

mod common;

use std::collections::HashSet;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::runtimes;
use wakeloop::runtime::net::{TcpListener, UnixStream};
use wakeloop::runtime::sync::{Notify, oneshot};
use wakeloop::runtime::time::{interval, now, sleep, sleep_until, timeout};
use wakeloop::runtime::{self, LocalSet, Runtime, spawn, spawn_blocking, spawn_local, testing, yield_now};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// Far more real time than any of these tests needs.
const PATIENCE: Duration = Duration::from_secs(60);

fn paused() -> Runtime {
    testing::Builder::new().build().unwrap()
}

/// Returns the text of the panic that `run` ends with.
fn panic_of<R>(run: impl FnOnce() -> R) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(run)) else { panic!("it did not panic") };
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().unwrap().to_string(),
    }
}

/// Runs `test` with each seed, and returns the first that it panics with.
fn find<F: Future>(seeds: u64, test: impl Fn() -> F) -> Option<u64> {
    (0..seeds).find(|seed| catch_unwind(AssertUnwindSafe(|| drop(testing::run(*seed, test())))).is_err())
}

// ---- time

#[test]
fn time_jumps_to_the_next_deadline_when_everything_waits() {
    let real = Instant::now();
    paused().block_on(async {
        let start = now();
        let late = spawn(async move {
            sleep(30 * 24 * HOUR).await;
            now() - start
        });
        sleep(HOUR).await;
        assert_eq!(now() - start, HOUR);
        assert_eq!(late.await.unwrap(), 30 * 24 * HOUR);
        sleep_until(start).await;
        assert_eq!(now() - start, 30 * 24 * HOUR, "a deadline in the past takes no time");
    });
    assert!(real.elapsed() < PATIENCE);
}

#[test]
fn time_stands_still_while_a_task_is_ready() {
    paused().block_on(async {
        let start = now();
        let sleeper = spawn(sleep(MS));
        for _ in 0..1000 {
            yield_now().await;
        }
        std::thread::sleep(2 * MS);
        assert!(!sleeper.is_finished());
        assert_eq!(now(), start);
        sleeper.await.unwrap();
        assert_eq!(now() - start, MS);
    });
}

#[test]
fn a_timeout_ends_at_its_limit_and_not_before() {
    for seed in 0..20 {
        testing::run(seed, async {
            let start = now();
            assert!(timeout(SECOND, pending::<()>()).await.is_err());
            assert_eq!(now() - start, SECOND);
            assert_eq!(timeout(2 * SECOND, async { sleep(SECOND).await }).await, Ok(()));
            assert_eq!(now() - start, 2 * SECOND);
            assert!(timeout(Duration::MAX, sleep(HOUR)).await.is_ok());
        });
    }
}

#[test]
fn an_interval_ticks_in_its_own_time_and_skips_what_an_advance_passes_over() {
    paused().block_on(async {
        let start = now();
        let mut ticks = interval(SECOND);
        for n in 0..100 {
            assert_eq!(ticks.tick().await - start, n * SECOND);
            assert_eq!(now() - start, n * SECOND);
        }
        testing::advance(Duration::from_millis(5500)).await;
        assert_eq!(ticks.tick().await - start, 100 * SECOND);
        assert_eq!(now() - start, Duration::from_millis(104_500));
        assert_eq!(ticks.tick().await - start, 105 * SECOND);
        assert_eq!(now() - start, 105 * SECOND);
    });
}

#[test]
fn advance_fires_what_is_due_and_returns_when_everything_waits() {
    for seed in 0..50 {
        testing::run(seed, async {
            let log = Arc::new(Mutex::new(Vec::new()));
            let sleepers: Vec<_> = (1..=5u32)
                .map(|n| {
                    let log = log.clone();
                    spawn(async move {
                        sleep(n * SECOND).await;
                        yield_now().await;
                        log.lock().unwrap().push(n);
                    })
                })
                .collect();
            let start = now();
            testing::advance(3 * SECOND).await;
            assert_eq!(now() - start, 3 * SECOND);
            let mut done = std::mem::take(&mut *log.lock().unwrap());
            done.sort_unstable();
            assert_eq!(done, [1, 2, 3]);
            drop(sleepers);
            sleep(HOUR).await;
            assert_eq!(
                *log.lock().unwrap(),
                [4, 5],
                "deadlines that differ keep their order when time jumps"
            );
        });
    }
}

#[test]
fn a_resumed_clock_runs_as_the_real_one_and_a_paused_one_keeps_its_time() {
    paused().block_on(async {
        let start = now();
        sleep(HOUR).await;
        testing::resume();
        let (resumed, real) = (now(), Instant::now());
        assert!(resumed - start >= HOUR);
        sleep(5 * MS).await;
        assert!(real.elapsed() >= 5 * MS);
        assert!(now() - resumed >= 5 * MS && now() - resumed < PATIENCE);
        testing::pause();
        let stopped = now();
        assert!(stopped - resumed >= 5 * MS);
        std::thread::sleep(2 * MS);
        assert_eq!(now(), stopped);
        sleep(HOUR).await;
        assert_eq!(now() - stopped, HOUR);
    });
}

#[test]
fn a_clock_that_is_not_in_the_state_for_it_refuses() {
    assert!(panic_of(|| paused().block_on(async { testing::pause() })).contains("paused already"));
    let running = || testing::Builder::new().start_paused(false).build().unwrap();
    assert!(panic_of(|| running().block_on(async { testing::resume() })).contains("not paused"));
    assert!(panic_of(|| running().block_on(testing::advance(MS))).contains("only a paused clock"));
    for rt in runtimes().into_iter().take(3) {
        assert!(panic_of(|| rt.block_on(async { testing::pause() })).contains("needs a runtime of"));
    }
    assert!(panic_of(testing::resume).contains("needs a runtime of"));
}

#[test]
fn other_runtimes_of_the_process_keep_the_real_clock() {
    let simulated = paused();
    simulated.block_on(sleep(HOUR));
    for rt in runtimes() {
        rt.block_on(async {
            let (before, start) = (Instant::now(), now());
            assert!(start >= before && start <= Instant::now());
            sleep(3 * MS).await;
            assert!(before.elapsed() >= 3 * MS && now() - start < PATIENCE);
        });
    }
    assert!(now() <= Instant::now());
    assert!(simulated.enter(now) > Instant::now() + HOUR / 2);
}

#[test]
fn a_sleep_of_a_paused_clock_is_over_on_other_runtimes_too() {
    let simulated = paused();
    let mut sleeping = Box::pin(sleep(Duration::ZERO));
    simulated.block_on(async {
        sleeping.set(sleep(HOUR));
        sleeping.as_mut().await;
    });
    // To this thread the deadline is an hour ahead.
    runtime::block_on(sleeping);
}

// ---- what is real

#[test]
fn a_blocking_job_on_a_thread_keeps_time_from_moving() {
    let rt = paused();
    for _ in 0..3 {
        rt.block_on(async {
            let start = now();
            let job = spawn_blocking(|| std::thread::sleep(5 * MS));
            assert!(timeout(MS, job).await.is_ok());
            assert_eq!(now(), start);
            // Nobody awaits this one.
            let ended = Arc::new(AtomicBool::new(false));
            let theirs = ended.clone();
            drop(spawn_blocking(move || {
                std::thread::sleep(5 * MS);
                theirs.store(true, SeqCst);
            }));
            sleep(HOUR).await;
            assert!(ended.load(SeqCst));
            assert_eq!(now() - start, HOUR);
        });
    }
}

#[test]
fn a_blocking_job_does_not_hold_time_if_told() {
    let rt = testing::Builder::new().jump_over_real_work(true).build().unwrap();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    rt.block_on(async {
        let job = spawn_blocking(move || held.recv());
        assert!(timeout(HOUR, job).await.is_err());
        drop(let_go);
    });
}

#[test]
fn inline_jobs_run_between_the_polls_and_their_panics_are_join_errors() {
    for seed in 0..20 {
        testing::run(seed, async {
            let here = std::thread::current().id();
            let job = spawn_blocking(move || std::thread::current().id() == here);
            assert!(job.await.unwrap());
            let error = spawn_blocking(|| panic!("on purpose")).await.unwrap_err();
            assert_eq!(error.panic_message(), Some("on purpose"));
            let aborted = spawn_blocking(|| unreachable!("it was aborted first"));
            aborted.abort();
            assert!(aborted.await.unwrap_err().is_cancelled());
            let nested = spawn_blocking(|| runtime::Handle::current().block_on(async {})).await;
            assert!(nested.unwrap_err().panic_message().unwrap().contains("block_on inside a task"));
            // A name is looked up by a job.
            assert!(TcpListener::bind(("localhost", 0)).await.is_ok());
        });
    }
}

#[test]
fn an_inline_job_of_another_thread_ends_the_wait() {
    let rt = testing::Builder::new().inline_blocking(true).build().unwrap();
    rt.block_on(async {
        let (handle, hold) = (runtime::Handle::current(), testing::hold());
        let (sender, receiver) = oneshot::channel();
        let other = std::thread::spawn(move || {
            std::thread::sleep(5 * MS);
            let _job = handle.spawn_blocking(move || sender.send(std::thread::current().id()).unwrap());
            drop(hold);
        });
        assert_eq!(receiver.await, Ok(std::thread::current().id()));
        other.join().unwrap();
    });
}

#[test]
fn a_socket_that_a_task_awaits_keeps_time_real() {
    paused().block_on(async {
        let (a, b) = UnixStream::pair().unwrap();
        let (real, start) = (Instant::now(), now());
        sleep(HOUR).await;
        assert_eq!(now() - start, HOUR, "an idle socket does not matter");
        assert!(real.elapsed() < PATIENCE);
        let reader = spawn(async move {
            let mut buffer = [0; 1];
            b.read_exact(&mut buffer).await.unwrap();
            buffer[0]
        });
        let (real, start) = (Instant::now(), now());
        sleep(20 * MS).await;
        assert!(real.elapsed() >= 20 * MS);
        assert!(now() - start >= 20 * MS && now() - start < PATIENCE);
        assert!(!reader.is_finished());
        a.write_all(&[7]).await.unwrap();
        assert_eq!(timeout(HOUR, reader).await.unwrap().unwrap(), 7);
    });
}

#[test]
fn another_thread_answers_while_a_socket_keeps_time_real() {
    paused().block_on(async {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let a = UnixStream::from_std(a).unwrap();
        let peer = std::thread::spawn(move || {
            use std::io::{Read, Write};
            std::thread::sleep(10 * MS);
            (&b).write_all(b"pong").unwrap();
            let _ = (&b).read(&mut [0; 1]);
        });
        let mut buffer = [0; 4];
        timeout(HOUR, a.read_exact(&mut buffer)).await.expect("time did not jump over it").unwrap();
        assert_eq!(&buffer, b"pong");
        drop(a);
        peer.join().unwrap();
    });
}

#[test]
fn slow_handlers_of_sockets_take_no_real_time_if_told_to_jump() {
    let real = Instant::now();
    for seed in 0..10 {
        let rt = testing::Builder::new().seed(seed).jump_over_real_work(true).build().unwrap();
        rt.block_on(async {
            let start = now();
            let clients: Vec<_> = (0..5u8)
                .map(|n| {
                    let (client, server) = UnixStream::pair().unwrap();
                    spawn(async move {
                        let mut buffer = [0; 8];
                        while let Ok(n @ 1..) = server.read(&mut buffer).await {
                            sleep(HOUR).await;
                            server.write_all(&buffer[..n]).await.unwrap();
                        }
                    });
                    spawn(async move {
                        for _ in 0..3 {
                            client.write_all(&[n]).await.unwrap();
                            let mut buffer = [0; 1];
                            timeout(2 * HOUR, client.read_exact(&mut buffer)).await.unwrap().unwrap();
                            assert_eq!(buffer, [n]);
                        }
                    })
                })
                .collect();
            for client in clients {
                client.await.unwrap();
            }
            assert_eq!(now() - start, 3 * HOUR);
        });
    }
    assert!(real.elapsed() < PATIENCE);
}

#[test]
fn a_hold_stands_for_a_thread_that_the_runtime_does_not_know() {
    paused().block_on(async {
        let (sender, receiver) = oneshot::channel();
        let (hold, start) = (testing::hold(), now());
        let other = std::thread::spawn(move || {
            std::thread::sleep(5 * MS);
            sender.send(7).unwrap();
            drop(hold);
        });
        assert_eq!(timeout(MS, receiver).await.unwrap(), Ok(7));
        assert_eq!(now(), start);
        other.join().unwrap();
        sleep(HOUR).await;
        assert_eq!(now() - start, HOUR);
    });
}

#[test]
fn another_thread_in_block_on_shares_the_clock_and_is_no_deadlock() {
    let rt = paused();
    let notify = Arc::new(Notify::new());
    rt.block_on(async {
        let (handle, theirs) = (runtime::Handle::current(), notify.clone());
        let hold = testing::hold();
        let other = std::thread::spawn(move || {
            handle.block_on(async move {
                drop(hold);
                let start = now();
                sleep(HOUR).await;
                theirs.notify_one();
                now() - start
            })
        });
        notify.notified().await;
        spawn_blocking(move || assert!(other.join().unwrap() >= HOUR)).await.unwrap();
    });
}

// ---- deadlocks

#[test]
fn a_deadlock_panics_at_once_and_names_the_tasks() {
    async fn waits_for_ever() {
        pending::<()>().await;
    }
    for rt in [paused(), testing::Builder::new().start_paused(false).build().unwrap()] {
        let text = panic_of(|| {
            rt.block_on(async {
                spawn(waits_for_ever());
                spawn(async { sleep(MS).await });
                let (sender, receiver) = oneshot::channel::<()>();
                let _held = sender;
                let _ = receiver.await;
            })
        });
        assert!(text.starts_with("deadlock: everything waits"), "{text}");
        assert!(text.contains("there is 1 task: ") && text.contains("waits_for_ever"), "{text}");
        // The runtime can go on.
        assert_eq!(rt.block_on(async { spawn(async { 3 }).await.unwrap() }), 3);
    }
    assert!(panic_of(|| testing::run(1, pending::<()>())).contains("block_on is the only one"));
}

#[test]
fn a_deadlock_that_begins_after_real_work_is_found() {
    let rt = paused();
    let text = panic_of(|| {
        rt.block_on(async {
            let (a, b) = UnixStream::pair().unwrap();
            let echo = spawn(async move { b.read(&mut [0; 1]).await });
            a.write_all(b"x").await.unwrap();
            echo.await.unwrap().unwrap();
            spawn_blocking(|| std::thread::sleep(2 * MS)).await.unwrap();
            pending::<()>().await;
        })
    });
    assert!(text.starts_with("deadlock"), "{text}");
}

// ---- order

/// What a busy program does, step by step.
async fn steps() -> Vec<(u32, Duration)> {
    let (log, start) = (Arc::new(Mutex::new(Vec::new())), now());
    let write = {
        let log = log.clone();
        move |what| log.lock().unwrap().push((what, now() - start))
    };
    let local = LocalSet::new();
    for n in 0..3 {
        let write = write.clone();
        local.spawn_local(async move {
            write(100 + n);
            yield_now().await;
            write(110 + n);
        });
    }
    let tasks: Vec<_> = (0..4)
        .map(|n| {
            let write = write.clone();
            spawn(async move {
                write(n);
                sleep(SECOND).await;
                write(10 + n);
                let theirs = write.clone();
                spawn_blocking(move || theirs(20 + n)).await.unwrap();
                write(30 + n);
            })
        })
        .collect();
    local
        .run_until(async {
            spawn_local(async { sleep(SECOND).await }).await.unwrap();
            for task in tasks {
                task.await.unwrap();
            }
        })
        .await;
    let log = std::mem::take(&mut *log.lock().unwrap());
    assert_eq!(log.len(), 22);
    log
}

#[test]
fn the_same_seed_leads_to_the_same_steps_and_others_to_other_steps() {
    let mut orders = HashSet::new();
    for seed in 0..50 {
        let first = testing::run(seed, steps());
        for _ in 0..4 {
            assert_eq!(testing::run(seed, steps()), first, "seed {seed}");
        }
        testing::assert_deterministic(seed, steps);
        orders.insert(first);
    }
    assert_eq!(orders.len(), 50, "there are far more orders than seeds");
}

#[test]
fn every_order_of_ready_tasks_tied_timers_local_tasks_and_jobs_occurs() {
    fn orders(case: impl AsyncFn(Arc<Mutex<Vec<u32>>>)) -> usize {
        let orders: HashSet<_> = (0..300)
            .map(|seed| {
                let log = Arc::new(Mutex::new(Vec::new()));
                testing::run(seed, case(log.clone()));
                let log = log.lock().unwrap();
                assert_eq!(log.len(), 3);
                log.clone()
            })
            .collect();
        orders.len()
    }
    let tasks = async |log: Arc<Mutex<Vec<u32>>>| {
        for task in [1, 2, 3]
            .map(|n| (n, log.clone()))
            .map(|(n, log)| spawn(async move { log.lock().unwrap().push(n) }))
        {
            task.await.unwrap();
        }
    };
    let timers = async |log: Arc<Mutex<Vec<u32>>>| {
        let due = now() + SECOND;
        let sleeper = |n| {
            let log = log.clone();
            async move {
                sleep_until(due).await;
                log.lock().unwrap().push(n);
            }
        };
        wakeloop::join!(sleeper(1), sleeper(2), sleeper(3));
    };
    let local = async |log: Arc<Mutex<Vec<u32>>>| {
        let push = |n| {
            let log = log.clone();
            async move { log.lock().unwrap().push(n) }
        };
        let set = LocalSet::new();
        let [a, b, c] = [1, 2, 3].map(|n| set.spawn_local(push(n)));
        let _done = set.run_until(async { wakeloop::join!(a, b, c) }).await;
    };
    let jobs = async |log: Arc<Mutex<Vec<u32>>>| {
        let [a, b, c] = [1, 2, 3].map(|n| {
            let log = log.clone();
            spawn_blocking(move || log.lock().unwrap().push(n))
        });
        let _done = wakeloop::join!(a, b, c);
    };
    assert_eq!(orders(tasks), 6);
    assert_eq!(orders(timers), 6);
    assert_eq!(orders(local), 6);
    assert_eq!(orders(jobs), 6);
}

#[test]
fn without_a_seed_tasks_run_in_the_order_in_which_they_were_woken() {
    let rt = paused();
    let log = Arc::new(Mutex::new(Vec::new()));
    rt.block_on(async {
        let write = |n: u32| {
            let log = log.clone();
            async move {
                log.lock().unwrap().push(n);
                yield_now().await;
                log.lock().unwrap().push(10 + n);
            }
        };
        let outer = {
            let (first, second, log) = (write(2), write(3), log.clone());
            spawn(async move {
                log.lock().unwrap().push(1);
                spawn(first);
                spawn(second);
                yield_now().await;
                log.lock().unwrap().push(11);
            })
        };
        outer.await.unwrap();
        sleep(MS).await;
    });
    assert_eq!(*log.lock().unwrap(), [1, 2, 3, 11, 12, 13]);
}

#[test]
fn a_task_that_never_waits_does_not_keep_jobs_timers_and_the_main_future_from_running() {
    for builder in [testing::Builder::new().inline_blocking(true), testing::Builder::new().seed(3)] {
        builder.build().unwrap().block_on(async {
            let busy = spawn(async {
                loop {
                    yield_now().await;
                }
            });
            let job = spawn_blocking(|| 7);
            while !job.is_finished() {
                yield_now().await;
            }
            busy.abort();
        });
    }
}

#[test]
fn a_program_that_the_seed_does_not_control_is_found_out() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let text = panic_of(|| {
        testing::assert_deterministic(1, || async {
            for _ in 0..RUNS.fetch_add(1, SeqCst) {
                yield_now().await;
            }
        });
    });
    assert!(text.contains("two runs with the seed 1 differ"), "{text}");
}

#[test]
fn tasks_that_are_ready_when_block_on_ends_run_in_the_next() {
    for seed in 0..20 {
        let rt = testing::Builder::new().seed(seed).build().unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        rt.block_on(async {
            for _ in 0..10 {
                let ran = ran.clone();
                spawn(async move { ran.fetch_add(1, SeqCst) });
            }
        });
        rt.block_on(sleep(MS));
        assert_eq!(ran.load(SeqCst), 10);
        let task = rt.spawn(async { 5 });
        assert_eq!(rt.block_on(task).unwrap(), 5);
        let never = rt.spawn(pending::<()>());
        drop(rt);
        assert!(runtime::block_on(never).unwrap_err().is_cancelled());
    }
}

// ---- bugs that a seed finds

/// Waits for a flag that another task sets. Between the look at the flag and the wait there is another await.
async fn pass_a_gate(remembers: bool) {
    let gate = Arc::new((AtomicBool::new(false), Notify::new()));
    let theirs = gate.clone();
    spawn(async move {
        yield_now().await;
        theirs.0.store(true, SeqCst);
        if remembers { theirs.1.notify_one() } else { theirs.1.notify_waiters() }
    });
    let (open, opened) = &*gate;
    if !open.load(SeqCst) {
        yield_now().await;
        opened.notified().await;
    }
}

#[test]
fn a_seed_finds_a_lost_wake_up_and_repeats_it() {
    let seed = find(1000, || pass_a_gate(false)).expect("no seed finds it");
    for _ in 0..3 {
        assert!(panic_of(|| testing::run(seed, pass_a_gate(false))).starts_with("deadlock"));
    }
    assert!(find(50, || pass_a_gate(false)).is_some(), "few seeds are enough");
    testing::run(seed, pass_a_gate(true));
    assert_eq!(find(300, || pass_a_gate(true)), None);
}

#[test]
fn a_seed_finds_a_read_modify_write_over_an_await() {
    async fn count() {
        let count = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let count = count.clone();
                spawn(async move {
                    let seen = count.load(SeqCst);
                    yield_now().await;
                    count.store(seen + 1, SeqCst);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(count.load(SeqCst), 3);
    }
    let seed = find(1000, count).expect("no seed finds it");
    assert!(panic_of(|| testing::run(seed, count())).contains("left == right"));
}

#[test]
fn a_seed_finds_a_result_that_comes_with_the_timeout() {
    /// It takes for granted that the answer, due at the same time as the limit, is there first.
    async fn request() {
        let (sender, receiver) = oneshot::channel();
        spawn(async move {
            sleep(SECOND).await;
            let _ = sender.send(());
        });
        assert!(timeout(SECOND, receiver).await.is_ok(), "too late");
    }
    let late = find(1000, request).expect("no seed finds it");
    assert!(panic_of(|| testing::run(late, request())).contains("too late"));
    let results: HashSet<_> =
        (0..50).map(|seed| catch_unwind(|| testing::run(seed, request())).is_ok()).collect();
    assert_eq!(results.len(), 2, "both orders occur");
}

/// The environment variable that makes this process play the program below.
const PLAYER: &str = "WAKELOOP_TEST_EXPLORES";

#[test]
fn explore_prints_the_failing_seed_and_the_environment_repeats_it_alone() {
    const NAME: &str = "explore_prints_the_failing_seed_and_the_environment_repeats_it_alone";
    if std::env::var_os(PLAYER).is_some() {
        return testing::explore(0..1000, || async {
            println!("a run begins");
            pass_a_gate(false).await;
        });
    }
    let play = |seed: Option<&str>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(PLAYER, "1").env_remove("WAKELOOP_SEED");
        command.envs(seed.map(|seed| ("WAKELOOP_SEED", seed)));
        let output = command.output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "{out}{err}");
        (out.matches("a run begins").count(), err.into_owned())
    };
    let (runs, text) = play(None);
    let seed = text.split_once("the run with the seed ").expect(&text).1.split(' ').next().unwrap();
    assert_eq!(seed.parse(), Ok(runs as u64 - 1), "the first seed that fails ends it: {text}");
    assert!(text.contains(&format!("WAKELOOP_SEED={seed}")), "{text}");
    let (runs, text) = play(Some(seed));
    assert_eq!(runs, 1);
    assert!(text.contains(&format!("the run with the seed {seed} failed")), "{text}");
    let (runs, text) = play(Some("x"));
    assert_eq!(runs, 0);
    assert!(text.contains("WAKELOOP_SEED is "), "{text}");
}
