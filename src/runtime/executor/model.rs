//! The parking protocol in every order: a task that was posted is taken, by somebody, without another wake.

use std::collections::VecDeque;
use std::sync::Arc;

use super::idle::Idle;
use super::park::Parker;
use crate::runtime::shim::model::{Mutex, check, thread};

/// Workers as far as the protocol goes: a shared queue instead of deques.
struct Pool {
    idle: Idle,
    parkers: Vec<Parker>,
    /// Looked at under `try_lock`-like brevity only; an atomic length would do as well.
    queue: Mutex<VecDeque<u32>>,
}

impl Pool {
    fn new(workers: usize) -> Pool {
        Pool {
            idle: Idle::new(workers),
            parkers: (0..workers).map(|_| Parker::default()).collect(),
            queue: Mutex::new(VecDeque::new()),
        }
    }

    fn post(&self, task: u32) {
        self.queue.lock().unwrap().push_back(task);
        if let Some(worker) = self.idle.notify() {
            self.parkers[worker].unpark(None);
        }
    }

    /// One task, found or waited for: the steps of `Worker::turn` and `Worker::park`.
    fn take(&self, worker: usize) -> u32 {
        let mut searching = false;
        loop {
            let task = self.queue.lock().unwrap().pop_front();
            if let Some(task) = task {
                let more = || !self.queue.lock().unwrap().is_empty();
                if searching
                    && self.idle.end_search()
                    && more()
                    && let Some(next) = self.idle.notify()
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
            searching = self.idle.unpark(worker);
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

/// As the fence pairs with the rescan even where the queue itself orders nothing: its length is an atomic that is
/// read and written relaxed, as in a deque.
#[test]
fn the_fences_alone_order_post_and_rescan() {
    use std::sync::atomic::Ordering::Relaxed;

    use crate::runtime::shim::model::AtomicUsize;
    check(|| {
        let idle = Arc::new(Idle::new(1));
        let parker = Arc::new(Parker::default());
        let posted = Arc::new(AtomicUsize::new(0));
        let sleeper = thread::spawn({
            let (idle, parker, posted) = (idle.clone(), parker.clone(), posted.clone());
            move || {
                parker.adopt();
                idle.park(0, false);
                if posted.load(Relaxed) == 0 {
                    parker.park();
                }
                let _ = idle.unpark(0);
            }
        });
        posted.store(1, Relaxed);
        if idle.notify().is_some() {
            parker.unpark(None);
        }
        sleeper.join().unwrap();
    });
}
