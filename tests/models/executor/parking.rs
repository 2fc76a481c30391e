//! Models of the parking protocol: some worker takes a posted task, without another wake.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::idle::{Chosen, Idle};
use super::park::Parker;
use super::watch::Watch;
use crate::runtime::driver::Driver;
use crate::runtime::shim::model::{AtomicUsize, Mutex, check, thread};

/// Workers as far as the protocol goes, with a shared queue instead of deques.
struct Pool {
    idle: Idle,
    parkers: Vec<Parker>,
    /// Locked only briefly; an atomic length would do as well.
    queue: Mutex<VecDeque<u32>>,
}

impl Pool {
    /// All workers are awake and search, as at their start.
    fn new(workers: usize) -> Pool {
        Pool {
            idle: awake(workers),
            parkers: (0..workers).map(|_| Parker::default()).collect(),
            queue: Mutex::new(VecDeque::new()),
        }
    }

    fn post(&self, task: u32) {
        self.queue.lock().unwrap().push_back(task);
        if let Some(worker) = notify(&self.idle) {
            self.parkers[worker].unpark(None);
        }
    }

    /// Finds or waits for one task: the steps of `Worker::turn` and `Worker::park`.
    fn take(&self, worker: usize) -> u32 {
        let mut searching = true;
        loop {
            let task = self.queue.lock().unwrap().pop_front();
            if let Some(task) = task {
                let more = || !self.queue.lock().unwrap().is_empty();
                if searching
                    && self.idle.end_search()
                    && more()
                    && let Some(next) = notify(&self.idle)
                {
                    self.parkers[next].unpark(None);
                }
                return task;
            }
            self.idle.park(worker, searching);
            let rescan = self.idle.nobody_searches() && !self.queue.lock().unwrap().is_empty();
            if !rescan {
                self.parkers[worker].park();
            }
            searching = self.idle.unpark(worker, rescan);
        }
    }

    fn start(self: &Arc<Pool>, worker: usize) -> thread::JoinHandle<u32> {
        let pool = self.clone();
        thread::spawn(move || {
            pool.parkers[worker].adopt();
            pool.take(worker)
        })
    }
}

fn awake(workers: usize) -> Idle {
    let idle = Idle::new(workers);
    (1..workers).for_each(|worker| assert_eq!(idle.call_unstarted(), Some(worker)));
    idle
}

/// For workers that all have started.
fn notify(idle: &Idle) -> Option<usize> {
    match idle.notify(|_| false)? {
        Chosen::Sleeper(worker) => Some(worker),
        Chosen::Unstarted(worker) => panic!("{worker} had started"),
    }
}

#[test]
fn a_post_reaches_a_worker_that_falls_asleep() {
    check(|| {
        let pool = Arc::new(Pool::new(1));
        let worker = pool.start(0);
        pool.post(7);
        assert_eq!(worker.join().unwrap(), 7);
    });
}

#[test]
fn two_posts_reach_two_workers() {
    check(|| {
        let pool = Arc::new(Pool::new(2));
        let workers = [pool.start(0), pool.start(1)];
        pool.post(1);
        pool.post(2);
        let taken: u32 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert_eq!(taken, 3);
    });
}

/// The fence must pair with the rescan even if the queue itself orders nothing. Here its length is a relaxed
/// atomic, as in a deque.
#[test]
fn the_fences_alone_order_post_and_rescan() {
    check(|| {
        let idle = Arc::new(awake(1));
        let parker = Arc::new(Parker::default());
        let posted = Arc::new(AtomicUsize::new(0));
        let sleeper = thread::spawn({
            let (idle, parker, posted) = (idle.clone(), parker.clone(), posted.clone());
            move || {
                parker.adopt();
                idle.park(0, true);
                if posted.load(Relaxed) == 0 {
                    parker.park();
                }
                let _ = idle.unpark(0, false);
            }
        });
        posted.store(1, Relaxed);
        if notify(&idle).is_some() {
            parker.unpark(None);
        }
        sleeper.join().unwrap();
    });
}

/// One of two workers searches while a task is posted. If the post wakes nobody, the searcher must report that
/// it saw the task. The length of the queue is relaxed, as above.
fn post_during(search: fn(&Idle, &dyn Fn() -> bool) -> bool) {
    check(move || {
        let idle = Arc::new(awake(2));
        let posted = Arc::new(AtomicUsize::new(0));
        idle.park(1, true);
        let searcher = thread::spawn({
            let (idle, posted) = (idle.clone(), posted.clone());
            move || search(&idle, &|| posted.load(Relaxed) == 1)
        });
        posted.store(1, Relaxed);
        let woken = notify(&idle).is_some();
        let seen = searcher.join().unwrap();
        assert!(woken || seen, "nobody comes");
    });
}

/// A poster that finds a searcher wakes nobody. The searcher may be about to end with another task, and must
/// then see that there is more.
#[test]
fn a_search_that_ends_sees_what_was_posted_during_it() {
    post_during(|idle, more| idle.end_search() && more());
}

/// The same with a searcher that found nothing and goes to sleep.
#[test]
fn a_searcher_that_goes_to_sleep_sees_what_was_posted_during_the_search() {
    post_during(|idle, more| {
        if more() {
            return true;
        }
        idle.park(0, true);
        idle.nobody_searches() && more()
    });
}

/// A poster tries to start a worker, and the system has no thread for it. Meanwhile another thread posts, and
/// sees a search under way. So the first one looks again, in the place of the worker that did not start.
#[test]
fn a_worker_that_cannot_be_started_leaves_no_task_behind() {
    check(|| {
        let idle = Arc::new(Idle::new(2));
        let posted = Arc::new(AtomicUsize::new(0));
        // The first worker is in the middle of a poll, then goes to sleep.
        assert!(idle.end_search());
        let Some(Chosen::Unstarted(worker)) = idle.notify(|_| false) else {
            panic!("somebody else is asleep")
        };
        idle.park(0, false);
        let posting = thread::spawn({
            let (idle, posted) = (idle.clone(), posted.clone());
            move || {
                posted.store(1, Relaxed);
                idle.notify(|_| false).is_some()
            }
        });
        idle.put_back(worker);
        let seen = idle.nobody_searches() && posted.load(Relaxed) == 1 && idle.wake_sleeper() == Some(0);
        let woken = posting.join().unwrap();
        assert!(woken || seen, "nobody comes");
    });
}

/// Starts a thread that parks, and then must see what was written before the unpark.
fn sleeper(parker: &Arc<Parker>, written: &Arc<AtomicUsize>) -> thread::JoinHandle<()> {
    let (parker, written) = (parker.clone(), written.clone());
    thread::spawn(move || {
        parker.adopt();
        parker.park();
        assert_eq!(written.load(Relaxed), 1);
    })
}

/// A thread sees after the park what was written before the unpark, whenever the two meet.
#[test]
fn an_unpark_hands_over_what_came_before_it() {
    check(|| {
        let parker = Arc::new(Parker::default());
        let written = Arc::new(AtomicUsize::new(0));
        let sleeper = sleeper(&parker, &written);
        written.store(1, Relaxed);
        parker.unpark(None);
        sleeper.join().unwrap();
    });
}

/// A stray token, from code that uses `thread::unpark` itself, ends the system's sleep but not the park. A wake
/// that is noticed because of it passes on as much as any other.
#[test]
fn a_stray_token_does_not_pass_for_an_unpark() {
    check(|| {
        let parker = Arc::new(Parker::default());
        let written = Arc::new(AtomicUsize::new(0));
        let sleeper = sleeper(&parker, &written);
        let stray = sleeper.thread().clone();
        let straying = thread::spawn(move || stray.unpark());
        written.store(1, Relaxed);
        parker.unpark(None);
        sleeper.join().unwrap();
        straying.join().unwrap();
    });
}

/// A worker is in the driver, where a wait may end for the sake of other tasks, and sometimes with work. Before
/// it waits again, it has seen what came before an unpark that it took.
fn in_driver(has_work: bool) {
    check(move || {
        let (mut driver, handle) = Driver::new(None);
        handle.open().unwrap();
        let (handle, parker) = (Arc::new(handle), Arc::new(Parker::default()));
        let written = Arc::new(AtomicUsize::new(0));
        let sleeper = thread::spawn({
            let (handle, parker, written) = (handle.clone(), parker.clone(), written.clone());
            move || {
                parker.park_in(&mut driver, &handle, || has_work);
                if !has_work {
                    assert_eq!(written.load(Relaxed), 1);
                } else if written.load(Relaxed) == 0 {
                    parker.park_in(&mut driver, &handle, || false);
                }
            }
        });
        let straying = thread::spawn({
            let handle = handle.clone();
            move || handle.unpark()
        });
        written.store(1, Relaxed);
        parker.unpark(Some(&handle));
        sleeper.join().unwrap();
        straying.join().unwrap();
    });
}

#[test]
fn an_unpark_ends_a_park_in_the_driver() {
    in_driver(false);
}

#[test]
fn a_park_in_the_driver_that_ends_with_work_loses_no_unpark() {
    in_driver(true);
}

/// A worker finds the driver taken and goes to sleep. It is called to keep watch if the driver is left
/// meanwhile. The lock of the driver is an atomic here: leaving loom's mutex would add the ordering that the
/// fence is there for.
#[test]
fn a_worker_that_falls_asleep_watches_a_driver_that_was_left() {
    check(|| {
        let idle = Arc::new(awake(2));
        let (watch, free) = (Arc::new(Watch::new()), Arc::new(AtomicUsize::new(0)));
        let parker = Arc::new(Parker::default());
        let sleeper = thread::spawn({
            let (idle, watch, free, parker) = (idle.clone(), watch.clone(), free.clone(), parker.clone());
            move || {
                parker.adopt();
                idle.park(1, true);
                if free.compare_exchange(1, 0, Acquire, Relaxed).is_err() {
                    parker.park();
                    assert!(watch.look(1).is_some());
                }
            }
        });
        free.store(1, Release);
        if watch.left(&idle, |_| false).is_some() {
            parker.unpark(None);
        }
        sleeper.join().unwrap();
    });
}

/// A worker that stands down because nothing happened is called again if something does.
#[test]
fn a_watch_ends_before_the_driver_is_left_or_goes_on() {
    check(|| {
        let idle = Arc::new(awake(2));
        idle.park(1, true);
        let (watch, parker) = (Arc::new(Watch::new()), Arc::new(Parker::default()));
        assert_eq!(watch.left(&idle, |_| false), Some(1));
        let seen = watch.look(1).unwrap();
        let watching = thread::spawn({
            let (watch, parker) = (watch.clone(), parker.clone());
            move || {
                parker.adopt();
                if watch.stand_down(seen) {
                    parker.park();
                }
                assert!(watch.look(1).is_some_and(|now| now != seen));
            }
        });
        if watch.left(&idle, |_| false).is_some() {
            parker.unpark(None);
        }
        watching.join().unwrap();
    });
}

/// A worker that has gone to work is never taken for the watch: then none would be called again.
#[test]
fn a_worker_that_goes_to_work_does_not_keep_the_watch() {
    check(|| {
        let idle = Arc::new(awake(2));
        idle.park(1, true);
        let watch = Arc::new(Watch::new());
        let working = thread::spawn({
            let (idle, watch) = (idle.clone(), watch.clone());
            move || {
                let _ = idle.unpark(1, false);
                let _ = watch.give_up(1);
            }
        });
        let _ = watch.left(&idle, |_| false);
        working.join().unwrap();
        assert!(watch.look(1).is_none());
    });
}
