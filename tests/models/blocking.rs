//! Models of the blocking pool: no job is lost or run twice, and shutdown waits for all threads.

use std::sync::atomic::AtomicUsize as Plain;
use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::runtime::LocalSet;
use crate::runtime::shim::model::{block_on, thread};

fn pool(cap: usize) -> Pool {
    Pool::new(cap, Duration::from_secs(3600), ThreadOptions::default())
}

fn submit(pool: &Pool, runs: &Arc<Plain>) -> JoinHandle<()> {
    let runs = runs.clone();
    let job = move || {
        runs.fetch_add(1, SeqCst);
    };
    pool.run(Job(Some(job)), &())
}

#[test]
fn every_job_runs_once_and_threads_leave() {
    crate::runtime::shim::model::check(|| {
        let (pool, runs) = (pool(1), Arc::new(Plain::new(0)));
        let first = submit(&pool, &runs);
        let second = submit(&pool, &runs);
        // Closing may drop the jobs, but then they report it, and none stays pending.
        block_on(async {
            first.await.unwrap();
            second.await.unwrap();
        });
        pool.close();
        assert!(pool.wait_left(None));
        assert_eq!(runs.load(SeqCst), 2);
    });
}

#[test]
fn jobs_from_two_threads_get_their_threads() {
    crate::runtime::shim::model::check(|| {
        let (pool, runs) = (Arc::new(pool(1)), Arc::new(Plain::new(0)));
        let other = thread::spawn({
            let (pool, runs) = (pool.clone(), runs.clone());
            move || submit(&pool, &runs)
        });
        let ours = submit(&pool, &runs);
        let theirs = other.join().unwrap();
        block_on(async {
            ours.await.unwrap();
            theirs.await.unwrap();
        });
        pool.close();
        assert!(pool.wait_left(None));
        assert_eq!(runs.load(SeqCst), 2);
    });
}

/// A task that waits for a job is notified by a thread that is returning to the queue, and counts on that
/// thread.
#[test]
fn a_task_notified_of_the_end_of_a_job_may_submit_the_next() {
    crate::runtime::shim::model::check(|| {
        let (pool, runs) = (Arc::new(pool(2)), Arc::new(Plain::new(0)));
        let local = LocalSet::new();
        block_on(local.run_until(async {
            let task = local.spawn_local({
                let (pool, runs) = (pool.clone(), runs.clone());
                async move {
                    submit(&pool, &runs).await.unwrap();
                    submit(&pool, &runs).await.unwrap();
                }
            });
            task.await.unwrap();
        }));
        pool.close();
        assert!(pool.wait_left(None));
        assert_eq!(runs.load(SeqCst), 2);
        assert_eq!(pool.0.returning.load(Relaxed), 0);
    });
}

#[test]
fn a_close_ends_what_has_not_begun() {
    crate::runtime::shim::model::check(|| {
        let (pool, runs) = (Arc::new(pool(1)), Arc::new(Plain::new(0)));
        let closing = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        let job = submit(&pool, &runs);
        let ended = block_on(job);
        closing.join().unwrap();
        assert!(pool.wait_left(None));
        assert_eq!(runs.load(SeqCst), usize::from(ended.is_ok()));
    });
}

/// loom cannot run this: it has too many orders.
#[cfg(wakeloop_shuttle)]
#[test]
fn threads_that_sleep_are_called_again() {
    crate::runtime::shim::model::check(|| {
        let (pool, runs) = (pool(2), Arc::new(Plain::new(0)));
        for _ in 0..2 {
            let jobs = [submit(&pool, &runs), submit(&pool, &runs)];
            block_on(async {
                for job in jobs {
                    job.await.unwrap();
                }
            });
        }
        pool.close();
        assert!(pool.wait_left(None));
        assert_eq!(runs.load(SeqCst), 4);
    });
}

#[test]
fn a_thread_that_does_not_start_leaves_its_job_to_one_that_sleeps() {
    crate::runtime::shim::model::check(|| {
        let (pool, runs) = (pool(1), Arc::new(Plain::new(0)));
        block_on(submit(&pool, &runs)).unwrap();
        // As if a second thread had been called while the first was busy.
        let mut state = unpoisoned(pool.0.state.lock());
        (state.threads, state.present, state.starting) =
            (state.threads + 1, state.present + 1, state.starting + 1);
        drop(state);
        let failing = thread::spawn({
            let place = ThreadPlace { pool: pool.0.clone(), stage: Stage::Starting };
            move || drop(place)
        });
        block_on(submit(&pool, &runs)).unwrap();
        failing.join().unwrap();
        pool.close();
        assert!(pool.wait_left(None));
        assert_eq!(runs.load(SeqCst), 2);
    });
}
