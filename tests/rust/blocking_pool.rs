//! Tests of the blocking pool: its cap, and threads that start, fail to start, and leave.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use wakeloop::runtime::time::timeout;
use wakeloop::runtime::{self, Builder, block_on};

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_blocking_job_belongs_to_the_runtime_and_the_pool_has_a_cap() {
    let rt = Builder::new().worker_threads(1).max_blocking_threads(2).build().unwrap();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let jobs: Vec<_> = (0..20)
        .map(|n| {
            let (now, most) = (now.clone(), most.clone());
            rt.spawn_blocking(move || {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                now.fetch_sub(1, SeqCst);
                block_on(runtime::spawn(async move { n })).unwrap()
            })
        })
        .collect();
    for (n, job) in jobs.into_iter().enumerate() {
        assert_eq!(rt.block_on(job).unwrap(), n);
    }
    assert!(most.load(SeqCst) <= 2);
    let error = rt.block_on(rt.spawn_blocking(|| -> () { panic!("blocked") })).unwrap_err();
    assert_eq!(error.panic_message(), Some("blocked"));
}

#[test]
fn blocking_jobs_that_wait_for_each_other_get_a_thread_each() {
    const JOBS: usize = 20;
    let rt = Builder::new_current_thread().max_blocking_threads(JOBS).build().unwrap();
    for _ in 0..20 {
        let barrier = Arc::new(std::sync::Barrier::new(JOBS));
        let jobs: Vec<_> = (0..JOBS)
            .map(|_| {
                let barrier = barrier.clone();
                rt.spawn_blocking(move || {
                    barrier.wait();
                })
            })
            .collect();
        let met = rt.block_on(timeout(LONG, async {
            for job in jobs {
                job.await.unwrap();
            }
        }));
        assert!(met.is_ok(), "a job waits for a thread");
    }
    assert_eq!(rt.metrics().blocking_threads, JOBS);
}

#[test]
fn an_idle_blocking_thread_leaves() {
    let rt = Builder::new().worker_threads(1).blocking_keep_alive(Duration::from_millis(10)).build().unwrap();
    rt.block_on(rt.spawn_blocking(|| {})).unwrap();
    let deadline = Instant::now() + LONG;
    while rt.metrics().blocking_threads > 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(rt.block_on(rt.spawn_blocking(|| 4)).unwrap(), 4);
}

/// The only thread goes to sleep meanwhile, and counts on the other one.
#[test]
fn a_job_is_done_although_the_thread_that_was_coming_for_it_fails_to_start() {
    let (reached, started) = channel();
    let (fail, failing) = channel::<()>();
    let (failing, threads) = (std::sync::Mutex::new(failing), AtomicUsize::new(0));
    let rt = Builder::new_current_thread()
        .on_thread_start(move || {
            if threads.fetch_add(1, SeqCst) == 1 {
                reached.send(()).unwrap();
                failing.lock().unwrap().recv().unwrap();
                panic!("on purpose");
            }
        })
        .build()
        .unwrap();
    let (release, held) = channel::<()>();
    let first = rt.spawn_blocking(move || held.recv().unwrap());
    let second = rt.spawn_blocking(|| {});
    started.recv_timeout(LONG).unwrap();
    release.send(()).unwrap();
    let third = rt.block_on(async {
        first.await.unwrap();
        second.await.unwrap();
        // The thread that ran both looks for more jobs, finds none, and waits.
        std::thread::sleep(Duration::from_millis(20));
        let third = rt.spawn_blocking(|| 3);
        fail.send(()).unwrap();
        timeout(LONG, third).await
    });
    assert_eq!(third.expect("nobody came").unwrap(), 3);
}

#[test]
fn a_job_that_comes_while_the_last_thread_leaves_gets_a_new_one() {
    let (reached, leaving) = channel();
    let (release, held) = channel::<()>();
    let held = std::sync::Mutex::new(held);
    let rt = Builder::new_current_thread()
        .max_blocking_threads(1)
        .blocking_keep_alive(Duration::from_millis(1))
        .on_thread_stop(move || {
            // Only the first time is there a task to wait for.
            if reached.send(()).is_ok() {
                let _ = held.lock().unwrap().recv();
            }
        })
        .build()
        .unwrap();
    rt.block_on(rt.spawn_blocking(|| {})).unwrap();
    leaving.recv_timeout(LONG).unwrap();
    drop(leaving);
    let second = rt.spawn_blocking(|| 2);
    std::thread::sleep(Duration::from_millis(20));
    drop(release);
    assert_eq!(rt.block_on(timeout(LONG, second)).expect("nobody came").unwrap(), 2);
}

/// A thread that ends a job does not count as idle while it runs user code: here, the drop of an output that nobody
/// awaits.
#[test]
fn the_drop_of_an_output_may_wait_for_another_job() {
    struct Waits(runtime::Handle, std::sync::mpsc::Sender<i32>);
    impl Drop for Waits {
        fn drop(&mut self) {
            let _ = self.1.send(block_on(self.0.spawn_blocking(|| 7)).unwrap());
        }
    }
    let rt = Builder::new_current_thread().max_blocking_threads(2).build().unwrap();
    let (ended, ends) = channel();
    let output = Waits(rt.handle(), ended);
    drop(rt.spawn_blocking(move || output));
    assert_eq!(ends.recv_timeout(LONG), Ok(7));
}

/// A thread that ends a job does not count as idle while it runs a waker of another executor, which may poll in
/// `wake`.
#[test]
fn a_waker_may_wait_for_another_job() {
    struct Waits(runtime::Handle, std::sync::Mutex<std::sync::mpsc::Sender<i32>>);
    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            let _ = self.1.lock().unwrap().send(block_on(self.0.spawn_blocking(|| 7)).unwrap());
        }
    }
    let rt = Builder::new_current_thread().max_blocking_threads(2).build().unwrap();
    let (ended, ends) = channel();
    let (go, gate) = channel::<()>();
    let mut job = rt.spawn_blocking(move || gate.recv());
    let waker = Waker::from(Arc::new(Waits(rt.handle(), std::sync::Mutex::new(ended))));
    assert!(Pin::new(&mut job).poll(&mut Context::from_waker(&waker)).is_pending());
    go.send(()).unwrap();
    assert_eq!(ends.recv_timeout(LONG), Ok(7));
}

#[test]
fn a_job_notifies_of_its_output_once() {
    struct Notifier(std::sync::mpsc::Sender<&'static str>);
    impl Drop for Notifier {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }
    let rt = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    let (say, heard) = channel();
    let notify = |notifier: Notifier| {
        move |word: &'static str| {
            let _ = notifier.0.send(word);
        }
    };
    rt.block_on(rt.handle().spawn_blocking_and_notify(|| "done", notify(Notifier(say.clone())))).unwrap();
    assert_eq!(heard.recv_timeout(LONG), Ok("done"));
    assert_eq!(heard.recv_timeout(LONG), Ok("dropped"));
    // After a panic or a cancel there is nothing to notify.
    let error = rt
        .block_on(rt.handle().spawn_blocking_and_notify(|| panic!("blocked"), notify(Notifier(say.clone()))))
        .unwrap_err();
    assert_eq!(error.panic_message(), Some("blocked"));
    assert_eq!(heard.recv_timeout(LONG), Ok("dropped"));
    let (go, gate) = channel::<()>();
    let busy = rt.spawn_blocking(move || gate.recv());
    let waits = rt.handle().spawn_blocking_and_notify(|| "never", notify(Notifier(say)));
    waits.abort();
    go.send(()).unwrap();
    assert!(rt.block_on(waits).unwrap_err().is_cancelled());
    assert!(rt.block_on(busy).unwrap().is_ok());
    assert_eq!(heard.recv_timeout(LONG), Ok("dropped"));
    assert!(heard.recv_timeout(LONG).is_err());
}
