//! Stress tests of everything at once, on one processor and on two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use wakeloop::runtime::net::{TcpListener, TcpStream, UnixStream};
use wakeloop::runtime::sync::{Semaphore, mpsc, oneshot};
use wakeloop::runtime::time::{sleep, timeout};
use wakeloop::runtime::{self, Builder, Runtime, spawn_blocking, yield_now};

/// How long each test runs.
const LENGTH: Duration = Duration::from_secs(8);
/// Nothing here takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Counted {
        alive.fetch_add(1, SeqCst);
        Counted(alive.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Confines this thread, and those it will start, to the first `count` of the processors it may use.
#[cfg(target_os = "linux")]
fn confine(count: usize) {
    // SAFETY: the sets are plain memory of the size that is passed; zeroed is the empty set.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size, &mut all), 0);
        let mut few: libc::cpu_set_t = std::mem::zeroed();
        let usable = (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &all));
        usable.take(count).for_each(|cpu| libc::CPU_SET(cpu, &mut few));
        assert_eq!(libc::sched_setaffinity(0, size, &few), 0);
    }
}

#[cfg(not(target_os = "linux"))]
fn confine(_: usize) {}

#[test]
fn everything_at_once_on_one_processor() {
    confine(1);
    stress();
}

#[test]
fn everything_at_once_on_two_processors() {
    confine(2);
    stress();
}

/// Makes runtimes and ends each in the middle of its work. On each, tasks spawn, talk, sleep, block, are
/// aborted and panic.
fn stress() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&"meant to happen") {
            quiet(info);
        }
    }));
    let end = Instant::now() + LENGTH;
    let mut round = 0;
    while Instant::now() < end {
        let builder = match round % 4 {
            0 => Builder::new().worker_threads(1),
            1 => Builder::new().worker_threads(2),
            2 => Builder::new().worker_threads(4),
            _ => Builder::new_current_thread(),
        };
        one_runtime(builder.build().unwrap(), round);
        round += 1;
    }
    assert!(round >= 4, "only {round} rounds");
}

fn one_runtime(rt: Runtime, round: usize) {
    let alive = Arc::new(AtomicUsize::new(0));
    // The tasks that are left when the runtime ends.
    for n in 0..50 {
        let guard = Counted::new(&alive);
        rt.spawn(async move {
            let _guard = guard;
            match n % 3 {
                0 => sleep(PATIENCE).await,
                1 => loop {
                    yield_now().await;
                },
                _ => {
                    let (ours, _theirs) = UnixStream::pair().unwrap();
                    ours.read(&mut [0]).await.unwrap();
                }
            }
        });
    }
    let stop = Arc::new(AtomicBool::new(false));
    let outside: Vec<_> = (0..2)
        .map(|_| {
            let (handle, stop) = (rt.handle(), stop.clone());
            thread::spawn(move || {
                let mut spawned = 0;
                while !stop.load(SeqCst) {
                    let task = handle.spawn(async move {
                        yield_now().await;
                        spawned
                    });
                    match runtime::block_on(task) {
                        Ok(number) => assert_eq!(number, spawned),
                        Err(error) => assert!(error.is_cancelled()),
                    }
                    spawned += 1;
                }
            })
        })
        .collect();
    let work = rt.spawn({
        let alive = alive.clone();
        async move {
            let parts = [
                ("chatter", runtime::spawn(chatter())),
                ("queues", runtime::spawn(queues())),
                ("timers", runtime::spawn(timers())),
                ("jobs", runtime::spawn(jobs())),
                ("endings", runtime::spawn(endings(alive))),
            ];
            for (name, part) in parts {
                let ended = timeout(PATIENCE, part).await.unwrap_or_else(|_| panic!("{name} hangs"));
                ended.unwrap_or_else(|error| panic!("{name} fails: {error}"));
            }
        }
    });
    rt.block_on(work).expect("no part hangs or fails");
    let mut rt = Some(rt);
    if round % 4 != 1 {
        // The threads that spawn from outside meet a runtime that is ending.
        drop(rt.take());
    }
    stop.store(true, SeqCst);
    outside.into_iter().for_each(|thread| thread.join().unwrap());
    drop(rt);
    let deadline = Instant::now() + PATIENCE;
    while alive.load(SeqCst) > 0 {
        assert!(Instant::now() < deadline, "futures are left");
        thread::yield_now();
    }
}

/// Connections over which messages go back and forth.
async fn chatter() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = runtime::spawn(async move {
        let mut connections = Vec::new();
        for n in 0..8 {
            let (stream, _) = listener.accept().await.unwrap();
            connections.push(runtime::spawn(async move {
                let mut buffer = [0; 4096];
                loop {
                    // Both ways of reading.
                    let read = if n % 2 == 0 {
                        stream.read(&mut buffer).await
                    } else {
                        stream.readable().await.unwrap();
                        stream.try_read(&mut buffer)
                    };
                    match read {
                        Ok(0) => return,
                        Ok(n) => stream.write_all(&buffer[..n]).await.unwrap(),
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                }
            }));
        }
        for connection in connections {
            connection.await.unwrap();
        }
    });
    let clients: Vec<_> = (0..8)
        .map(|n| {
            runtime::spawn(async move {
                let stream = TcpStream::connect(address).await.unwrap();
                for size in [1, 4096, 100_000] {
                    let sent: Vec<u8> = (0..size).map(|place| (place * 31 + n) as u8).collect();
                    let mut got = vec![0; size];
                    let (written, read) =
                        wakeloop::join!(stream.write_all(&sent), stream.read_exact(&mut got));
                    written.unwrap();
                    read.unwrap();
                    assert_eq!(sent, got);
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    server.await.unwrap();
}

/// A chain of bounded channels, and a semaphore that all tasks pass.
async fn queues() {
    let gate = Arc::new(Semaphore::new(3));
    let (first, mut last) = mpsc::bounded(1);
    for _ in 0..20 {
        let (next, receiver) = mpsc::bounded(2);
        let (mut from, gate) = (std::mem::replace(&mut last, receiver), gate.clone());
        runtime::spawn(async move {
            while let Some(value) = from.recv().await {
                let permit = gate.acquire(1).await;
                yield_now().await;
                // It must never happen that all permits are held by tasks that wait for room, while the tasks
                // that make room wait for a permit.
                drop(permit);
                if next.send(value).await.is_err() {
                    return;
                }
            }
        });
    }
    let sender = runtime::spawn(async move {
        for value in 0..100 {
            first.send(value).await.unwrap();
        }
    });
    for value in 0..100 {
        assert_eq!(last.recv().await, Some(value));
    }
    assert_eq!(last.recv().await, None);
    sender.await.unwrap();
}

/// Sleeps that complete, and timeouts that do and do not expire.
async fn timers() {
    let tasks: Vec<_> = (0..200u64)
        .map(|n| {
            runtime::spawn(async move {
                let (start, length) = (Instant::now(), Duration::from_micros(n * 7919 % 5000));
                sleep(length).await;
                assert!(start.elapsed() >= length);
                assert!(timeout(Duration::from_micros(n), sleep(PATIENCE)).await.is_err());
                timeout(PATIENCE, yield_now()).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn jobs() {
    let jobs: Vec<_> = (0..50).map(|n| spawn_blocking(move || n)).collect();
    for (n, job) in jobs.into_iter().enumerate() {
        assert_eq!(job.await.unwrap(), n);
    }
}

/// Tasks that are aborted at every point of their lives, and some that panic.
async fn endings(alive: Arc<AtomicUsize>) {
    for n in 0..200 {
        let (guard, (sender, receiver)) = (Counted::new(&alive), oneshot::channel());
        let task = runtime::spawn(async move {
            let _guard = guard;
            receiver.await.unwrap_or(0)
        });
        match n % 4 {
            0 => {
                sender.send(n).unwrap();
                assert_eq!(task.await.unwrap(), n);
            }
            1 => {
                task.abort();
                let _ = sender.send(n);
                assert!(task.await.unwrap_or(n) == n);
            }
            2 => {
                yield_now().await;
                task.abort();
                drop(sender);
                let _ = task.await;
            }
            _ => drop(task),
        }
        let panics = runtime::spawn(async {
            yield_now().await;
            panic!("meant to happen")
        });
        if n % 10 == 0 {
            assert!(panics.await.unwrap_err().is_panic());
        }
    }
}
