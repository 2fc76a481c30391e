//! Models of a runtime without threads: a wake reaches the caller that has the worker or waits for it, and
//! tasks are dropped where the worker is. The driver sleeps in the reactor of `driver/reactor.rs`.

use std::future::{Future, pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};

use super::Shared;
use crate::runtime::shim::model::thread::ThreadId;
use crate::runtime::shim::model::{AtomicUsize, block_on, check, thread};
use crate::runtime::sync::oneshot;
use crate::runtime::{Builder, Runtime, context};

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

/// Starts a thread that writes a flag, relaxed, and then uses the waker that it is sent.
fn waking(flag: &Arc<AtomicUsize>) -> (oneshot::Sender<Waker>, thread::JoinHandle<()>) {
    let (give, take) = oneshot::channel::<Waker>();
    let flag = flag.clone();
    let waking = thread::spawn(move || {
        let waker = block_on(take).unwrap();
        flag.store(1, Relaxed);
        waker.wake();
    });
    (give, waking)
}

/// Passes its waker on when it is first polled, and waits until all flags are set.
fn until_set<const N: usize>(
    flags: [Arc<AtomicUsize>; N],
    give: impl IntoIterator<Item = oneshot::Sender<Waker>>,
) -> impl Future<Output = ()> {
    let mut give: Vec<_> = give.into_iter().collect();
    poll_fn(move |cx| {
        for give in give.drain(..) {
            give.send(cx.waker().clone()).unwrap();
        }
        if flags.iter().all(|flag| flag.load(Relaxed) == 1) { Poll::Ready(()) } else { Poll::Pending }
    })
}

/// Two wakes. The one that finds the future woken already also passes on what came before it.
#[test]
fn wakes_from_two_threads_reach_the_future_in_block_on() {
    check(|| {
        let rt = runtime();
        let flags = [0, 0].map(|_| Arc::new(AtomicUsize::new(0)));
        let (give, threads): (Vec<_>, Vec<_>) = flags.iter().map(waking).unzip();
        rt.block_on(until_set(flags, give));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// The worker sleeps in the driver, and no other thread could poll the task.
#[test]
fn a_task_that_another_thread_wakes_is_polled_by_the_thread_with_the_worker() {
    check(|| {
        let rt = runtime();
        let flag = Arc::new(AtomicUsize::new(0));
        let (give, waking) = waking(&flag);
        let task = rt.spawn(until_set([flag], [give]));
        rt.block_on(task).unwrap();
        waking.join().unwrap();
    });
}

/// Three threads are in `block_on`. The one that leaves the worker calls one that waits for it. If that one's
/// future has ended meanwhile, it calls the next.
#[test]
fn a_caller_that_no_longer_needs_the_worker_wakes_the_next() {
    check(|| {
        let rt = Arc::new(runtime());
        let task = rt.spawn(async {});
        let waiting = thread::spawn({
            let rt = rt.clone();
            move || rt.block_on(task).unwrap()
        });
        let going = thread::spawn({
            let rt = rt.clone();
            move || rt.block_on(async {})
        });
        rt.block_on(async {});
        going.join().unwrap();
        waiting.join().unwrap();
    });
}

/// The wake of the future and the end of the runtime coincide. The future is polled on without the worker, and
/// sees what came before the wake.
#[test]
fn a_wake_at_the_end_of_the_runtime_is_not_lost() {
    check(|| {
        let rt = runtime();
        let flag = Arc::new(AtomicUsize::new(0));
        let (give, take) = oneshot::channel::<Waker>();
        let ending = thread::spawn({
            let (shared, flag) = (shared(&rt), flag.clone());
            move || {
                let waker = block_on(take).unwrap();
                shared.close();
                flag.store(1, Relaxed);
                waker.wake();
            }
        });
        rt.block_on(until_set([flag], [give]));
        ending.join().unwrap();
    });
}

fn shared(rt: &Runtime) -> Arc<Shared> {
    rt.enter(|| context::with(Arc::clone))
}

/// Records the threads on which it was dropped.
#[derive(Clone, Default)]
struct Drops(Arc<std::sync::Mutex<Vec<ThreadId>>>);

struct Guard(Drops);

impl Drop for Guard {
    fn drop(&mut self) {
        let thread = thread::current().id();
        self.0.0.lock().unwrap().push(thread);
    }
}

/// A task is woken while the runtime ends. The thread with the worker drops it, not the one that wakes it.
#[test]
fn a_task_that_is_woken_while_the_runtime_ends_is_dropped_where_the_worker_is() {
    check(|| {
        let rt = runtime();
        let drops = Drops::default();
        let guard = Guard(drops.clone());
        let (give, waking) = waking(&Arc::new(AtomicUsize::new(0)));
        let waiting = until_set([Arc::new(AtomicUsize::new(0))], [give]);
        rt.spawn(async move {
            let _guard = guard;
            waiting.await;
        });
        rt.block_on(crate::runtime::yield_now());
        drop(rt);
        assert_eq!(*drops.0.lock().unwrap(), [thread::current().id()]);
        waking.join().unwrap();
    });
}

/// Another thread ends the runtime while its worker is driven. The driving thread ends the worker, and the
/// other waits for that.
#[test]
fn a_runtime_that_is_driven_is_ended_by_its_driving_thread() {
    check(|| {
        let rt = runtime();
        let drops = Drops::default();
        let guard = Guard(drops.clone());
        let task = rt.spawn(async move {
            let _guard = guard;
            pending::<()>().await;
        });
        let handle = rt.handle();
        let driving = thread::spawn(move || handle.block_on(task).unwrap_err().is_cancelled());
        drop(rt);
        assert_eq!(drops.0.lock().unwrap().len(), 1);
        assert!(driving.join().unwrap());
    });
}

/// The same with a future that ends meanwhile: the worker is put back after the other thread has looked.
#[test]
fn a_worker_that_is_put_back_while_the_runtime_ends_is_ended() {
    check(|| {
        let rt = runtime();
        let handle = rt.handle();
        let driving = thread::spawn(move || handle.block_on(async {}));
        drop(rt);
        driving.join().unwrap();
    });
}
