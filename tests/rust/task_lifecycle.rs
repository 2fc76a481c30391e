//! Tests of every way in which a task can end. Every future and output is dropped exactly once.

mod common;

use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::Duration;

use common::runtimes;
use wakeloop::runtime::sync::oneshot;
use wakeloop::runtime::time::{sleep, timeout};
use wakeloop::runtime::{self, Builder, JoinError, yield_now};

const LONG: Duration = Duration::from_secs(20);

/// Counts how often it is dropped.
#[derive(Clone, Default)]
struct Drops(Arc<AtomicUsize>);

struct Counted(Drops);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, SeqCst);
    }
}

impl Drops {
    fn guard(&self) -> Counted {
        Counted(self.clone())
    }

    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

#[test]
fn a_ready_task_drops_its_future_once_and_gives_its_output_once() {
    for rt in runtimes() {
        let (future, output) = (Drops::default(), Drops::default());
        let (inside, result) = (future.guard(), output.guard());
        let joined = rt.block_on(rt.spawn(async move {
            let _inside = inside;
            yield_now().await;
            result
        }));
        assert_eq!((future.count(), output.count()), (1, 0));
        drop(joined);
        assert_eq!(output.count(), 1);
    }
}

#[test]
fn a_detached_task_runs_on_and_its_output_is_dropped() {
    for rt in runtimes() {
        let output = Drops::default();
        let (result, (sender, receiver)) = (output.guard(), oneshot::channel::<()>());
        drop(rt.spawn(async move {
            yield_now().await;
            drop(sender);
            result
        }));
        assert!(rt.block_on(receiver).is_err());
        drop(rt);
        assert_eq!(output.count(), 1);
    }
}

#[test]
fn an_output_that_nobody_took_goes_with_the_handle() {
    for rt in runtimes() {
        let output = Drops::default();
        let result = output.guard();
        let handle = rt.spawn(async move { result });
        rt.block_on(async {
            while !handle.is_finished() {
                sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!(output.count(), 0);
        drop(handle);
        assert_eq!(output.count(), 1);
    }
}

#[test]
fn an_aborted_task_drops_its_future_and_says_cancelled() {
    for rt in runtimes() {
        let drops = Drops::default();
        let guard = drops.guard();
        let handle = rt.spawn(async move {
            let _guard = guard;
            pending::<()>().await;
        });
        rt.block_on(sleep(Duration::from_millis(5)));
        let abort = handle.abort_handle();
        abort.abort();
        abort.clone().abort();
        assert!(rt.block_on(handle).unwrap_err().is_cancelled());
        assert_eq!(drops.count(), 1);
        assert!(abort.is_finished());
        abort.abort();
    }
}

#[test]
fn an_abort_before_the_first_poll_drops_the_future_unpolled() {
    let rt = Builder::new_current_thread().build().unwrap();
    let drops = Drops::default();
    let guard = drops.guard();
    let handle = rt.spawn(async move {
        let _guard = guard;
        panic!("polled");
    });
    handle.abort();
    let joined: Result<(), _> = rt.block_on(handle);
    assert!(joined.unwrap_err().is_cancelled());
    assert_eq!(drops.count(), 1);
}

#[test]
fn a_task_that_aborts_itself_stops_at_its_next_await() {
    for rt in runtimes() {
        let (sender, receiver) = oneshot::channel::<runtime::AbortHandle>();
        let handle = rt.spawn(async move {
            receiver.await.unwrap().abort();
            pending::<()>().await;
        });
        assert!(sender.send(handle.abort_handle()).is_ok());
        assert!(rt.block_on(async { timeout(LONG, handle).await.unwrap() }).unwrap_err().is_cancelled());
    }
}

#[test]
fn a_panic_reaches_the_handle_and_the_worker_continues() {
    for rt in runtimes() {
        let drops = Drops::default();
        let guard = drops.guard();
        let error = rt
            .block_on(rt.spawn(async move {
                let _guard = guard;
                if true {
                    panic!("on purpose");
                }
            }))
            .unwrap_err();
        assert!(error.is_panic() && !error.is_cancelled());
        assert_eq!(error.panic_message(), Some("on purpose"));
        assert_eq!(error.to_string(), "the task panicked: on purpose");
        assert_eq!(drops.count(), 1);
        assert_eq!(rt.block_on(rt.spawn(async { 5 })).unwrap(), 5);
    }
}

#[test]
fn a_future_that_panics_when_dropped_is_a_panic_too() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    for rt in runtimes() {
        let bomb = Bomb;
        let handle = rt.spawn(async move {
            let _bomb = bomb;
            pending::<()>().await;
        });
        rt.block_on(sleep(Duration::from_millis(2)));
        handle.abort();
        assert!(matches!(rt.block_on(handle), Err(JoinError::Panic(_))));
        assert_eq!(rt.block_on(rt.spawn(async { 5 })).unwrap(), 5);
    }
}

#[test]
fn a_join_waker_that_panics_affects_no_other_task() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("in wake");
        }
    }
    for rt in runtimes() {
        let (sender, receiver) = oneshot::channel::<()>();
        let mut handle = rt.spawn(receiver);
        let waker = Waker::from(Arc::new(Panics));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut handle).poll(&mut context).is_pending());
        sender.send(()).unwrap();
        assert_eq!(rt.block_on(rt.spawn(async { 5 })).unwrap(), 5);
        assert!(rt.block_on(handle).unwrap().is_ok());
    }
}

#[test]
fn wakes_before_during_and_after_the_poll_cost_one_poll_each_at_most() {
    for rt in runtimes() {
        let polls = Arc::new(AtomicUsize::new(0));
        let kept: Arc<Mutex<Option<Waker>>> = Arc::default();
        let (count, keep) = (polls.clone(), kept.clone());
        let handle = rt.spawn(poll_fn(move |cx| {
            keep.lock().unwrap().replace(cx.waker().clone());
            match count.fetch_add(1, SeqCst) {
                0 => {
                    for _ in 0..5 {
                        cx.waker().wake_by_ref();
                    }
                    Poll::Pending
                }
                1 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        }));
        rt.block_on(async {
            while polls.load(SeqCst) < 2 {
                sleep(Duration::from_millis(1)).await;
            }
            sleep(Duration::from_millis(5)).await;
        });
        assert_eq!(polls.load(SeqCst), 2);
        let waker = kept.lock().unwrap().take().unwrap();
        waker.wake_by_ref();
        rt.block_on(handle).unwrap();
        assert_eq!(polls.load(SeqCst), 3);
        for _ in 0..100 {
            let another = waker.clone();
            waker.wake_by_ref();
            another.wake();
        }
        drop(rt);
        waker.wake();
        assert_eq!(polls.load(SeqCst), 3);
    }
}

#[test]
fn a_task_recognises_its_own_waker() {
    for rt in runtimes() {
        let kept: Mutex<Option<Waker>> = Mutex::default();
        let same = rt.spawn(poll_fn(move |cx| {
            let mut kept = kept.lock().unwrap();
            if let Some(first) = &*kept {
                return Poll::Ready(first.will_wake(cx.waker()));
            }
            kept.replace(cx.waker().clone());
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        assert!(rt.block_on(same).unwrap());
    }
}

#[test]
fn a_handle_polled_with_changing_wakers_wakes_the_last() {
    let rt = Builder::new().worker_threads(1).build().unwrap();
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let (sender, receiver) = oneshot::channel::<()>();
    let mut handle = rt.spawn(receiver);
    let counts: Vec<_> = (0..3).map(|_| Arc::new(Count(AtomicUsize::new(0)))).collect();
    for count in &counts {
        let waker = Waker::from(count.clone());
        for _ in 0..2 {
            assert!(Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    sender.send(()).unwrap();
    assert!(rt.block_on(handle).unwrap().is_ok());
    assert_eq!(counts[0].0.load(SeqCst) + counts[1].0.load(SeqCst), 0);
    assert!(counts.iter().all(|count| Arc::strong_count(count) == 1), "wakers were dropped");
}

#[test]
fn ten_thousand_tasks_can_be_aborted_at_once() {
    // Under Miri, ten thousand tasks would take hours.
    let count = if cfg!(miri) { 50 } else { 10_000 };
    for rt in runtimes() {
        let drops = Drops::default();
        let handles: Vec<_> = (0..count)
            .map(|n| {
                let guard = drops.guard();
                rt.spawn(async move {
                    let _guard = guard;
                    if n % 2 == 0 { pending::<()>().await } else { sleep(LONG * 10).await }
                })
            })
            .collect();
        handles.iter().for_each(|handle| handle.abort());
        rt.block_on(async {
            for handle in handles {
                assert!(handle.await.unwrap_err().is_cancelled());
            }
        });
        assert_eq!(drops.count(), count);
        assert_eq!(rt.metrics().tasks_live, 0);
        assert_eq!(rt.metrics().timers_armed, 0);
    }
}

#[test]
fn a_handle_polled_after_it_was_ready_panics() {
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let mut handle = rt.spawn(async {});
    rt.block_on(&mut handle).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| rt.block_on(&mut handle))).is_err());
}

#[test]
fn a_waker_with_a_null_pointer_can_poll_a_handle() {
    static VTABLE: RawWakerVTable =
        RawWakerVTable::new(|data| RawWaker::new(data, &VTABLE), |_| {}, |_| {}, |_| {});
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let mut handle = rt.spawn(async { 5 });
    // SAFETY: the functions do nothing, and ignore the pointer.
    let waker = unsafe { Waker::new(std::ptr::null(), &VTABLE) };
    loop {
        if let Poll::Ready(output) = Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)) {
            assert_eq!(output.unwrap(), 5);
            break;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_join_error_passes_through_the_usual_error_types() {
    fn shared(error: JoinError) -> Box<dyn std::error::Error + Send + Sync> {
        error.into()
    }
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let panicked = || rt.block_on(rt.spawn(async { panic!("on purpose") })).unwrap_err();
    assert_eq!(shared(panicked()).to_string(), "the task panicked: on purpose");
    let error = std::io::Error::from(panicked());
    assert!(error.get_ref().is_some_and(|inner| inner.downcast_ref::<JoinError>().unwrap().is_panic()));
    let JoinError::Panic(panic) = panicked() else { panic!("it was not cancelled") };
    let again = catch_unwind(AssertUnwindSafe(|| panic.resume())).unwrap_err();
    assert_eq!(again.downcast_ref(), Some(&"on purpose"));
}
