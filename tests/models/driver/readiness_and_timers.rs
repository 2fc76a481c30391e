//! Models of readiness and timers, without the system: the test plays epoll and the clock.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::registration::{Direction, Socket, SocketWait};
use super::timers::{TimerEntry, Timers};
use crate::reactor::{Readiness, Wait};
use crate::runtime::shim::model::{AtomicUsize, block_on, check, thread};

/// A byte arrives, and an edge is reported. A reader gets the byte, in whatever order its look and the edge
/// come.
#[test]
fn a_waiting_reader_is_woken_by_the_edge() {
    check(|| {
        let socket = Arc::new(Socket::new(Readiness::EMPTY));
        let bytes = Arc::new(AtomicUsize::new(0));
        let arriving = arrive(&socket, &bytes);
        read(&socket, &bytes);
        arriving.join().unwrap();
    });
}

/// A reader that finds the socket empty clears the readiness. It must not clear an edge that has just come.
#[test]
fn a_clear_does_not_wipe_out_a_later_edge() {
    check(|| {
        // Assumed to be ready, but is not.
        let socket = Arc::new(Socket::new(Readiness::READABLE));
        let bytes = Arc::new(AtomicUsize::new(0));
        let arriving = arrive(&socket, &bytes);
        read(&socket, &bytes);
        arriving.join().unwrap();
    });
}

/// A waiter leaves while the edge comes. Another waiter is woken.
#[test]
fn a_waiter_that_leaves_takes_no_edge_along() {
    check(|| {
        let socket = Arc::new(Socket::new(Readiness::EMPTY));
        let bytes = Arc::new(AtomicUsize::new(0));
        let arriving = arrive(&socket, &bytes);
        let leaving = SocketWait::new(&socket, Direction::Read);
        let _ = leaving.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        drop(leaving);
        read(&socket, &bytes);
        arriving.join().unwrap();
    });
}

/// A thread in which a byte arrives, and the edge is reported.
fn arrive(socket: &Arc<Socket>, bytes: &Arc<AtomicUsize>) -> thread::JoinHandle<()> {
    let (socket, bytes) = (socket.clone(), bytes.clone());
    thread::spawn(move || {
        bytes.store(1, Relaxed);
        edge(&socket);
    })
}

fn edge(socket: &Socket) {
    let mut ready = Vec::new();
    socket.add(usize::from(Readiness::READABLE.bits()), &mut ready);
    ready.into_iter().for_each(std::task::Waker::wake);
}

/// The steps of `Registration::run`.
fn read(socket: &Socket, bytes: &AtomicUsize) {
    let waiting = SocketWait::new(socket, Direction::Read);
    block_on(poll_fn(|cx| {
        loop {
            match waiting.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(_) if bytes.load(Relaxed) == 1 => return Poll::Ready(()),
                Poll::Ready(seen) => socket.clear(seen, Direction::Read),
            }
        }
    }));
}

/// The driver fires a timer while its owner cancels and frees it.
#[test]
fn a_cancel_races_with_the_firing() {
    check(|| {
        let timers = Arc::new(Timers::new(None));
        let entry = Box::pin(TimerEntry::new());
        let past = Instant::now();
        arm(&timers, entry.as_ref(), past, std::task::Waker::noop());
        let driver = thread::spawn({
            let timers = timers.clone();
            move || {
                let mut ready = Vec::new();
                timers.end_wait(&mut ready);
                ready.into_iter().for_each(std::task::Waker::wake);
            }
        });
        // As `Sleep::drop`.
        if entry.is_armed() {
            timers.cancel(&entry);
        }
        entry.is_freed();
        driver.join().unwrap();
        assert_eq!(timers.len(), 0);
    });
}

/// A sleeper that refreshes its waker while the timer fires is woken, or sees that it fired.
#[test]
fn a_sleeper_that_changes_its_waker_is_woken() {
    check(|| {
        let timers = Arc::new(Timers::new(None));
        let entry = Box::pin(TimerEntry::new());
        arm(&timers, entry.as_ref(), Instant::now(), std::task::Waker::noop());
        let driver = thread::spawn({
            let timers = timers.clone();
            move || {
                let mut ready = Vec::new();
                timers.end_wait(&mut ready);
                ready.into_iter().for_each(std::task::Waker::wake);
            }
        });
        block_on(poll_fn(|cx| {
            if entry.has_fired() || !timers.refresh(entry.as_ref(), cx.waker()) {
                return Poll::Ready(());
            }
            Poll::Pending
        }));
        entry.is_freed();
        driver.join().unwrap();
    });
}

/// A timer that is armed while the driver goes to sleep either shortens the sleep beforehand or asks for its
/// end.
#[test]
fn an_earlier_timer_ends_a_wait_for_a_later_one() {
    check(|| {
        let timers = Arc::new(Timers::new(None));
        let waiting = thread::spawn({
            let timers = timers.clone();
            move || timers.begin_wait() == Wait::Forever
        });
        let entry = Box::pin(TimerEntry::new());
        let later = Instant::now() + Duration::from_secs(60);
        // SAFETY: cancelled below.
        let armed = unsafe { timers.arm(entry.as_ref(), later, std::task::Waker::noop()) };
        let waits_for_ever = waiting.join().unwrap();
        assert_eq!(armed == super::Armed::EndWait, waits_for_ever);
        timers.cancel(&entry);
    });
}

fn arm(timers: &Timers, entry: Pin<&TimerEntry>, at: Instant, waker: &std::task::Waker) {
    // SAFETY: each test cancels the entry or waits until it has fired.
    let armed = unsafe { timers.arm(entry, at, waker) };
    assert!(armed == super::Armed::Waiting);
}
