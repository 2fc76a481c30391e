//! Models of task state, join waker and reference count, on a local set, which needs no driver.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Plain;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::{Poll, Waker};

use crate::runtime::LocalSet;
use crate::runtime::shim::model::{AtomicUsize, block_on, check, thread};

struct Drops(Arc<Plain>);

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Two wakes from another thread. The polls that follow see what was written before them, even with relaxed
/// accesses. Neither wake is lost, whether it comes before, during or after a poll. The future is freed once.
#[test]
fn two_wakers_race_with_the_poll_and_the_end() {
    check(|| {
        let local = LocalSet::new();
        let drops = Arc::new(Plain::new(0));
        let count = Arc::new(AtomicUsize::new(0));
        let (first, get_first) = crate::runtime::sync::oneshot::channel::<Waker>();
        let theirs = count.clone();
        let waking = thread::spawn(move || {
            let waker = block_on(get_first).unwrap();
            let again = waker.clone();
            theirs.fetch_add(1, Relaxed);
            waker.wake_by_ref();
            theirs.fetch_add(1, Relaxed);
            again.wake();
        });
        let guard = Drops(drops.clone());
        block_on(local.run_until(async {
            let mut give = Some(first);
            local
                .spawn_local(poll_fn(move |cx| {
                    let _guard = &guard;
                    if let Some(give) = give.take() {
                        give.send(cx.waker().clone()).unwrap();
                    }
                    if count.load(Relaxed) == 2 { Poll::Ready(()) } else { Poll::Pending }
                }))
                .await
                .unwrap();
        }));
        waking.join().unwrap();
        assert_eq!(drops.load(SeqCst), 1);
    });
}

/// Another thread awaits the join handle while the task completes.
#[test]
fn a_joiner_on_another_thread_gets_the_output() {
    check(|| {
        let local = LocalSet::new();
        let handle = local.spawn_local(async { Box::new(7) });
        let joining = thread::spawn(move || *block_on(handle).unwrap());
        block_on(local.run_until(crate::runtime::yield_now()));
        assert_eq!(joining.join().unwrap(), 7);
    });
}

/// The handle is polled with one waker, then another, while the task completes: the slot has one owner at a
/// time.
#[test]
fn a_joiner_that_changes_its_waker_is_woken() {
    check(|| {
        let local = LocalSet::new();
        let mut handle = local.spawn_local(async { Box::new(7) });
        let joining = thread::spawn(move || {
            let mut noop = std::task::Context::from_waker(Waker::noop());
            match std::future::Future::poll(std::pin::Pin::new(&mut handle), &mut noop) {
                Poll::Ready(output) => *output.unwrap(),
                Poll::Pending => *block_on(handle).unwrap(),
            }
        });
        block_on(local.run_until(crate::runtime::yield_now()));
        assert_eq!(joining.join().unwrap(), 7);
    });
}

/// The handle is dropped, or aborts, while the task completes: one side drops the output, once.
#[test]
fn an_output_without_a_taker_is_dropped_once() {
    check(|| {
        let drops = Arc::new(Plain::new(0));
        let local = LocalSet::new();
        let guard = Drops(drops.clone());
        let handle = local.spawn_local(async move { guard });
        let going = thread::spawn(move || {
            handle.abort();
            drop(handle);
        });
        block_on(local.run_until(crate::runtime::yield_now()));
        going.join().unwrap();
        drop(local);
        assert_eq!(drops.load(SeqCst), 1);
    });
}

/// Two threads wake the future in `run_until` at once. Its next poll sees what both wrote, even if the second
/// wake found it woken already.
#[test]
fn two_wakes_of_the_future_in_run_until_both_hand_over() {
    check(|| {
        let local = LocalSet::new();
        let flags = [0, 1].map(|_| Arc::new(AtomicUsize::new(0)));
        let (mut threads, mut senders) = (Vec::new(), Vec::new());
        for flag in flags.clone() {
            let (give, take) = crate::runtime::sync::oneshot::channel::<Waker>();
            senders.push(give);
            threads.push(thread::spawn(move || {
                let waker = block_on(take).unwrap();
                flag.store(1, Relaxed);
                waker.wake();
            }));
        }
        block_on(local.run_until(poll_fn(|cx| {
            for give in senders.drain(..) {
                give.send(cx.waker().clone()).unwrap();
            }
            if flags.iter().all(|flag| flag.load(Relaxed) == 1) { Poll::Ready(()) } else { Poll::Pending }
        })));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
