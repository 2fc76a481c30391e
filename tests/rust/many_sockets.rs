//! Tests of many sockets that are ready at once: their effect on each other, and on a timer.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use wakeloop::runtime::Runtime;
use wakeloop::runtime::net::UnixStream;
use wakeloop::runtime::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(60);
/// Several times what one turn of the driver reports.
const PAIRS: usize = 400;

/// All but the simulated one, whose turns have an order of their own.
fn runtimes() -> impl Iterator<Item = Runtime> {
    common::runtimes().into_iter().take(3)
}

/// Starts pairs of sockets that pass a byte back and forth until stopped. Returns how often each has done so.
fn play(rt: &Runtime, stop: &Arc<AtomicBool>) -> Arc<Vec<AtomicUsize>> {
    let rounds: Arc<Vec<AtomicUsize>> = Arc::new((0..PAIRS).map(|_| AtomicUsize::new(0)).collect());
    for pair in 0..PAIRS {
        let (near, far) = rt.handle().enter(UnixStream::pair).unwrap();
        let (rounds, stop) = (rounds.clone(), stop.clone());
        rt.spawn(async move {
            while !stop.load(SeqCst) {
                near.write_all(b"x").await.unwrap();
                near.read_exact(&mut [0; 1]).await.unwrap();
                rounds[pair].fetch_add(1, SeqCst);
            }
        });
        rt.spawn(async move {
            while matches!(far.read(&mut [0; 1]).await, Ok(1)) && far.write_all(b"x").await.is_ok() {}
        });
    }
    rounds
}

#[test]
fn many_sockets_that_are_ready_have_their_turns_alike() {
    for rt in runtimes() {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = play(&rt, &stop);
        // The first pairs have run for a while when the last are made.
        let before: Vec<_> = rounds.iter().map(|count| count.load(SeqCst)).collect();
        let counts =
            || rounds.iter().zip(&before).map(|(count, old)| count.load(SeqCst) - old).collect::<Vec<_>>();
        let played = rt.block_on(timeout(LONG, async {
            while counts().iter().sum::<usize>() < 100 * PAIRS {
                sleep(Duration::from_millis(1)).await;
            }
        }));
        let counts = counts();
        stop.store(true, SeqCst);
        played.unwrap();
        let (fewest, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(fewest * 4 >= *most, "between {fewest} and {most} turns, {rt:?}");
    }
}

/// Measured in turns of the other tasks, not in time.
#[test]
fn a_timer_among_many_sockets_that_are_ready_is_not_late_by_many_turns() {
    for rt in runtimes() {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = play(&rt, &stop);
        let sum = move || rounds.iter().map(|count| count.load(SeqCst)).sum::<usize>();
        let sleeper = rt.spawn(async move {
            while sum() < PAIRS {
                sleep(Duration::from_millis(1)).await;
            }
            let mut least = usize::MAX;
            for _ in 0..20 {
                let (before, start) = (sum(), Instant::now());
                sleep(Duration::from_millis(2)).await;
                // The work that could have been done during the delay.
                let (done, took) = (sum() - before, start.elapsed());
                let late = took.saturating_sub(Duration::from_millis(2));
                least = least.min((done as f64 * late.as_secs_f64() / took.as_secs_f64()) as usize);
            }
            least
        });
        let late = rt.block_on(timeout(LONG, sleeper));
        stop.store(true, SeqCst);
        let late = late.unwrap().unwrap();
        assert!(late <= 4 * PAIRS, "late by {late} rounds of {PAIRS} pairs, {rt:?}");
    }
}
