//! Tests of shutdown, in every state that a runtime's tasks can be in.

use std::future::pending;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use wakeloop::runtime::net::{TcpListener, TcpStream, UnixStream};
use wakeloop::runtime::sync::oneshot;
use wakeloop::runtime::time::sleep;
use wakeloop::runtime::{self, Builder, Runtime, spawn_blocking, yield_now};

const LONG: Duration = Duration::from_secs(100);

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn builders() -> [Builder; 3] {
    [Builder::new_current_thread(), Builder::new().worker_threads(1), Builder::new().worker_threads(3)]
}

/// The threads of this process with this name prefix. Names are cut at 15 bytes.
fn threads_named(prefix: &str) -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

#[test]
fn dropping_the_runtime_drops_every_future_once_and_leaves_no_thread() {
    for (n, builder) in builders().into_iter().enumerate() {
        let name = format!("gone{n}");
        let rt = builder.thread_name(&name).build().unwrap();
        let drops = Arc::new(AtomicUsize::new(0));
        let guard = || Counted(drops.clone());
        rt.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            for _ in 0..10 {
                let (one, two, three, four) = (guard(), guard(), guard(), guard());
                runtime::spawn(async move {
                    let _guard = one;
                    sleep(LONG).await;
                });
                runtime::spawn(async move {
                    let _guard = two;
                    let stream = TcpStream::connect(address).await.unwrap();
                    stream.read(&mut [0; 8]).await.unwrap();
                });
                runtime::spawn(async move {
                    let _guard = three;
                    loop {
                        yield_now().await;
                    }
                });
                runtime::spawn(async move {
                    let _guard = four;
                    pending::<()>().await;
                });
            }
            let five = guard();
            runtime::spawn(async move {
                let _guard = five;
                let mut streams = Vec::new();
                loop {
                    streams.push(listener.accept().await.unwrap());
                }
            });
            let six = guard();
            spawn_blocking(move || drop(six)).await.unwrap();
            sleep(Duration::from_millis(20)).await;
        });
        let handle = rt.handle();
        drop(rt);
        assert_eq!(drops.load(SeqCst), 42);
        assert_eq!(handle.metrics().tasks_live, 0);
        assert_eq!(handle.metrics().sockets, 0);
        assert_eq!(handle.metrics().timers_armed, 0);
        // A joined thread may take a moment to leave the list.
        let deadline = Instant::now() + Duration::from_secs(10);
        while threads_named(&name) > 0 {
            assert!(Instant::now() < deadline, "threads are left");
            std::thread::yield_now();
        }
    }
}

#[test]
fn ten_thousand_tasks_that_sleep_read_and_compute_end_with_their_runtime() {
    const SLEEPING: usize = 6000;
    const READING: usize = 200;
    const COMPUTING: usize = 3600;
    const PANICKED: usize = 100;
    const ABORTED: usize = 100;
    for (n, builder) in builders().into_iter().enumerate() {
        let name = format!("many{n}");
        let rt = builder.thread_name(&name).build().unwrap();
        let drops = Arc::new(AtomicUsize::new(0));
        let guard = || Counted(drops.clone());
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        rt.block_on(async {
            let mut ended = Vec::new();
            for n in 0..SLEEPING {
                let guard = guard();
                runtime::spawn(async move {
                    let _guard = guard;
                    sleep(LONG + Duration::from_micros(n as u64 * 7919 % 10_000)).await;
                });
            }
            for _ in 0..READING {
                let (guard, (ours, theirs)) = (guard(), UnixStream::pair().unwrap());
                runtime::spawn(async move {
                    let (_guard, _open) = (guard, theirs);
                    ours.read(&mut [0; 8]).await.unwrap();
                });
            }
            for _ in 0..COMPUTING {
                let guard = guard();
                runtime::spawn(async move {
                    let _guard = guard;
                    let mut sum = 0u64;
                    loop {
                        sum = std::hint::black_box(sum.wrapping_mul(31) + 1);
                        yield_now().await;
                    }
                });
            }
            for n in 0..PANICKED + ABORTED {
                let guard = guard();
                let task = runtime::spawn(async move {
                    let _guard = guard;
                    yield_now().await;
                    if n < PANICKED {
                        panic!("on purpose");
                    }
                    pending::<()>().await;
                });
                if n >= PANICKED {
                    task.abort();
                }
                ended.push(task);
            }
            for task in ended {
                assert!(task.await.is_err());
            }
        });
        std::panic::set_hook(quiet);
        assert_eq!(drops.load(SeqCst), PANICKED + ABORTED);
        let handle = rt.handle();
        let start = Instant::now();
        drop(rt);
        eprintln!("{name}: 9,800 tasks ended in {:?}", start.elapsed());
        assert_eq!(drops.load(SeqCst), SLEEPING + READING + COMPUTING + PANICKED + ABORTED);
        let metrics = handle.metrics();
        assert_eq!((metrics.tasks_live, metrics.sockets, metrics.timers_armed), (0, 0, 0));
        let deadline = Instant::now() + Duration::from_secs(10);
        while threads_named(&name) > 0 {
            assert!(Instant::now() < deadline, "threads are left");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_spawn_after_the_end_is_cancelled_at_once() {
    for builder in builders() {
        let rt = builder.build().unwrap();
        let handle = rt.handle();
        drop(rt);
        let late = handle.spawn(async { 1 });
        assert!(late.is_finished());
        assert!(runtime::block_on(late).unwrap_err().is_cancelled());
        let late = handle.spawn_blocking(|| 1);
        assert!(runtime::block_on(late).unwrap_err().is_cancelled());
    }
}

#[test]
fn a_future_that_spawns_while_it_is_dropped_gets_no_further() {
    struct Spawns(runtime::Handle, Arc<AtomicUsize>);
    impl Drop for Spawns {
        fn drop(&mut self) {
            if self.1.fetch_add(1, SeqCst) < 3 {
                let again = Spawns(self.0.clone(), self.1.clone());
                self.0.spawn(async move {
                    let _again = again;
                    pending::<()>().await;
                });
            }
        }
    }
    for builder in builders() {
        let rt = builder.build().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let first = Spawns(rt.handle(), count.clone());
        rt.spawn(async move {
            let _first = first;
            pending::<()>().await;
        });
        drop(rt);
        assert_eq!(count.load(SeqCst), 4);
    }
}

#[test]
fn a_runtime_dropped_by_its_own_task_ends_without_waiting_for_itself() {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    let handle = rt.handle();
    let (sender, receiver) = oneshot::channel::<Runtime>();
    let task = handle.spawn(async move {
        drop(receiver.await);
    });
    sender.send(rt).unwrap();
    let _ = runtime::block_on(task);
}

/// Waiting would block the outer runtime's other tasks, and the inner runtime may be waiting for one of them.
#[test]
fn a_runtime_dropped_in_a_task_of_another_ends_without_being_waited_for() {
    for (outer, inner) in builders().into_iter().zip(builders()) {
        let outer = outer.build().unwrap();
        let inner = inner.build().unwrap();
        let drops = Arc::new(AtomicUsize::new(0));
        let guard = Counted(drops.clone());
        inner.spawn(async move {
            let _guard = guard;
            pending::<()>().await;
        });
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (begun, beginning) = std::sync::mpsc::channel();
        let job = inner.spawn_blocking(move || {
            begun.send(()).unwrap();
            gone.recv_timeout(LONG / 5).is_ok()
        });
        beginning.recv().unwrap();
        let handle = inner.handle();
        outer.block_on(async {
            let dropping = runtime::spawn(async move {
                drop(inner);
                yield_now().await;
            });
            let going = runtime::spawn(async move { go.send(()).unwrap() });
            dropping.await.unwrap();
            going.await.unwrap();
        });
        assert!(runtime::block_on(job).unwrap(), "the job was waited for");
        assert!(runtime::block_on(handle.spawn(async {})).unwrap_err().is_cancelled());
        let deadline = Instant::now() + LONG;
        while drops.load(SeqCst) == 0 {
            assert!(Instant::now() < deadline, "a future is left");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_shutdown_with_a_limit_does_not_wait_for_a_stuck_task() {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    let go = Arc::new(AtomicBool::new(false));
    let (stuck, started) = (go.clone(), Arc::new(AtomicBool::new(false)));
    let running = started.clone();
    rt.spawn(async move {
        running.store(true, SeqCst);
        while !stuck.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    while !started.load(SeqCst) {
        std::thread::yield_now();
    }
    assert!(!rt.shutdown_timeout(Duration::from_millis(50)));
    go.store(true, SeqCst);
}

#[test]
fn a_shutdown_with_a_limit_that_is_not_needed_succeeds() {
    for builder in builders() {
        let rt = builder.build().unwrap();
        rt.spawn(pending::<()>());
        assert!(rt.shutdown_timeout(Duration::from_secs(20)));
    }
}

#[test]
fn wakes_from_other_threads_race_with_the_end() {
    for round in 0..200 {
        let rt = Builder::new().worker_threads(1 + round % 2).build().unwrap();
        let drops = Arc::new(AtomicUsize::new(0));
        let senders: Vec<_> = (0..20)
            .map(|_| {
                let (sender, receiver) = oneshot::channel::<()>();
                let guard = Counted(drops.clone());
                rt.spawn(async move {
                    let _guard = guard;
                    let _ = receiver.await;
                });
                sender
            })
            .collect();
        let handle = rt.handle();
        let thread = std::thread::spawn(move || {
            for sender in senders {
                let _ = sender.send(());
                handle.spawn(yield_now());
            }
        });
        drop(rt);
        assert_eq!(drops.load(SeqCst), 20);
        thread.join().unwrap();
    }
}

#[test]
fn a_forgotten_runtime_goes_on() {
    let rt = ManuallyDrop::new(Builder::new().worker_threads(1).build().unwrap());
    assert_eq!(runtime::block_on(rt.handle().spawn(async { 3 })).unwrap(), 3);
    // For the leak checker, not for the runtime.
    drop(ManuallyDrop::into_inner(rt));
}

#[test]
fn hooks_run_on_each_thread_once() {
    let (started, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (on_start, on_stop) = (started.clone(), stopped.clone());
    let rt = Builder::new()
        .worker_threads(3)
        .on_thread_start(move || _ = on_start.fetch_add(1, SeqCst))
        .on_thread_stop(move || _ = on_stop.fetch_add(1, SeqCst))
        .build()
        .unwrap();
    // Three polls at a time need three workers.
    let together = Arc::new(Barrier::new(3));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let together = together.clone();
            rt.spawn(async move { together.wait() })
        })
        .collect();
    rt.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    drop(rt);
    assert_eq!((started.load(SeqCst), stopped.load(SeqCst)), (3, 3));
}

#[test]
fn a_hook_that_panics_on_a_worker_ends_the_runtime_and_its_tasks() {
    let rt = Builder::new()
        .worker_threads(2)
        .thread_name("hooked")
        .on_thread_start(|| {
            if std::thread::current().name() == Some("hooked-1") {
                panic!("a hook");
            }
        })
        .build()
        .unwrap();
    // The second worker starts with the first timer.
    let task = rt.spawn(sleep(Duration::from_secs(3600)));
    assert!(runtime::block_on(task).unwrap_err().is_cancelled());
    drop(rt);
}

#[test]
fn a_hook_that_panics_on_a_thread_of_the_pool_cancels_the_job_and_no_more() {
    let rt = Builder::new()
        .worker_threads(1)
        .thread_name("pooled")
        .on_thread_start(|| {
            if std::thread::current().name() == Some("pooled-blocking") {
                panic!("a hook");
            }
        })
        .build()
        .unwrap();
    for _ in 0..2 {
        assert!(runtime::block_on(rt.spawn_blocking(|| ())).unwrap_err().is_cancelled());
    }
    assert_eq!(rt.block_on(async { runtime::spawn(async { 5 }).await.unwrap() }), 5);
    drop(rt);
}

#[test]
fn a_tracer_that_panics_ends_no_task_and_no_worker() {
    struct Panics;
    impl runtime::Tracer for Panics {
        fn event(&self, event: runtime::TraceEvent) {
            if matches!(event, runtime::TraceEvent::Polled { .. } | runtime::TraceEvent::Woken { .. }) {
                panic!("a tracer");
            }
        }
    }
    let rt = Builder::new().worker_threads(1).tracer(Arc::new(Panics)).build().unwrap();
    let task = rt.spawn(async {
        yield_now().await;
        sleep(Duration::from_millis(1)).await;
        7
    });
    assert_eq!(runtime::block_on(task).unwrap(), 7);
}

/// Ends `rt` on a thread of its own. Fails if that takes too long.
fn ends(rt: Runtime) {
    let (done, waiting) = std::sync::mpsc::channel();
    let ending = std::thread::spawn(move || {
        drop(rt);
        let _ = done.send(());
    });
    waiting.recv_timeout(LONG).expect("the runtime does not end");
    ending.join().unwrap();
}

#[test]
fn a_runtime_ends_while_another_thread_is_about_to_leave_its_block_on() {
    for panics in [false, true] {
        let rt = Builder::new_current_thread().build().unwrap();
        let handle = rt.handle();
        let (begun, beginning) = std::sync::mpsc::channel();
        let blocking = std::thread::spawn(move || {
            handle.block_on(async {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                assert!(!panics, "on purpose");
            });
        });
        beginning.recv().unwrap();
        ends(rt);
        assert_eq!(blocking.join().is_err(), panics);
    }
}

#[test]
fn a_caller_that_waits_for_the_only_worker_gets_it_although_another_one_panicked() {
    let rt = Builder::new_current_thread().build().unwrap();
    let (done, driving) = oneshot::channel();
    let first = rt.handle();
    let first = std::thread::spawn(move || first.block_on(driving).unwrap());
    while rt.metrics().parks == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Needs the driver, which the first runtime has.
    let (asleep, sleeping) = std::sync::mpsc::channel();
    let patient = rt.handle();
    let patient = std::thread::spawn(move || {
        patient.block_on(sleep(Duration::from_millis(300)));
        asleep.send(()).unwrap();
    });
    while rt.metrics().timers_armed == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let failing = rt.handle();
    std::thread::spawn(move || failing.block_on(async { panic!("on purpose") })).join().unwrap_err();
    done.send(()).unwrap();
    first.join().unwrap();
    sleeping.recv_timeout(Duration::from_secs(20)).expect("nobody runs the worker");
    patient.join().unwrap();
}

#[test]
fn the_hooks_of_all_threads_have_run_when_the_runtime_is_gone() {
    for _ in 0..20 {
        let (started, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (starting, stopping) = (started.clone(), stopped.clone());
        let rt = Builder::new()
            .worker_threads(1)
            .on_thread_start(move || {
                starting.fetch_add(1, SeqCst);
            })
            .on_thread_stop(move || {
                std::thread::sleep(Duration::from_millis(1));
                stopping.fetch_add(1, SeqCst);
            })
            .build()
            .unwrap();
        let jobs: Vec<_> =
            (0..3).map(|_| rt.spawn_blocking(|| std::thread::sleep(Duration::from_millis(2)))).collect();
        jobs.into_iter().for_each(|job| runtime::block_on(job).unwrap());
        drop(rt);
        assert!(started.load(SeqCst) > 1);
        assert_eq!(started.load(SeqCst), stopped.load(SeqCst));
    }
}

#[test]
fn a_name_that_no_thread_can_have_is_an_error() {
    let error = Builder::new().thread_name("a\0b").build().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn a_handle_that_a_task_asked_for_runs_the_tasks_of_a_runtime_without_threads() {
    let rt = Builder::new_current_thread().build().unwrap();
    let handle = rt.block_on(async { runtime::Handle::try_current().unwrap() });
    let (done, waiting) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        handle.block_on(async { runtime::spawn(async { yield_now().await }).await.unwrap() });
        done.send(()).unwrap();
    });
    waiting.recv_timeout(LONG).expect("nobody runs the worker");
    other.join().unwrap();
}
