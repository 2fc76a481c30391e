//! Models of the state word with several pollers: only the steps of [`super::cell`] that use it. Threads and a
//! mutex stand for queues and pollers. Plain memory stands for what a wake passes on, what a poll leaves behind
//! and what is freed; loom reports when two threads touch it at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::state::{Paused, Start, TaskState, Woken};
use crate::runtime::shim::UnsafeCell;
use crate::runtime::shim::model::{AtomicUsize, Mutex, check, thread};

/// A task whose future counts its polls, and is ready when `wakes` of them were asked for.
struct Task {
    state: TaskState,
    /// Rule 1: touched by the holder of the `Runnable` only.
    future: UnsafeCell<usize>,
    /// Rule 2: the output.
    output: UnsafeCell<usize>,
    /// What wakers pass to the poll: written before the wake, relaxed, and must not be lost.
    asked: AtomicUsize,
    wanted: usize,
    /// Written before a cancel.
    cancelled: AtomicUsize,
    queue: Mutex<VecDeque<()>>,
}

// SAFETY: the state word gives the cells to one thread at a time. The models test that.
unsafe impl Send for Task {}
// SAFETY: the state word gives the cells to one thread at a time. The models test that.
unsafe impl Sync for Task {}

impl Task {
    /// Creates a task that was polled once and waits.
    fn waiting(wanted: usize) -> Arc<Task> {
        let task = Arc::new(Task {
            state: TaskState::new(),
            future: UnsafeCell::new(0),
            output: UnsafeCell::new(0),
            asked: AtomicUsize::new(0),
            wanted,
            cancelled: AtomicUsize::new(0),
            queue: Mutex::new(VecDeque::new()),
        });
        task.run();
        task
    }

    fn ask(&self) {
        self.asked.fetch_add(1, Relaxed);
        self.queue_if(self.state.wake_by_ref());
    }

    fn queue_if(&self, woken: Woken) {
        if woken == Woken::Schedule {
            self.queue.lock().unwrap().push_back(());
        }
    }

    /// Polls as often as the task is queued. Returns how many of the polls completed it.
    fn poll_queued(&self) -> usize {
        let mut ended = 0;
        loop {
            let queued = self.queue.lock().unwrap().pop_front();
            match queued {
                Some(()) => ended += usize::from(self.run()),
                None => return ended,
            }
        }
    }

    /// The steps of `Task::run`. Returns true when the task is complete.
    fn run(&self) -> bool {
        loop {
            if self.state.start() == Start::Cancel {
                return self.finish_cancelled();
            }
            let asked = self.future.with_mut(|polls| {
                // SAFETY: rule 1.
                unsafe { *polls += 1 };
                self.asked.load(Relaxed)
            });
            if asked == self.wanted {
                return self.finish();
            }
            match self.state.pause() {
                Paused::Idle => return false,
                Paused::Again => {}
                Paused::Cancel => return self.finish_cancelled(),
            }
        }
    }

    fn finish(&self) -> bool {
        // SAFETY: rules 1 and 2.
        self.future.with_mut(|polls| self.output.with_mut(|output| unsafe { *output = *polls }));
        let _ = self.state.complete();
        true
    }

    fn finish_cancelled(&self) -> bool {
        assert_eq!(self.cancelled.load(Relaxed), 1);
        self.finish()
    }
}

/// The future moves between threads: each wake may be followed by a poll on another thread, which finds the
/// future as the last poll left it.
fn two_pollers(ask: fn(&Task)) {
    check(move || {
        let task = Task::waiting(2);
        // For wakes by value.
        task.state.retain();
        task.state.retain();
        let ask_and_poll = move |task: &Task| {
            ask(task);
            task.poll_queued()
        };
        let other = thread::spawn({
            let task = task.clone();
            move || ask_and_poll(&task)
        });
        let mut ended = ask_and_poll(&task);
        ended += other.join().unwrap();
        // The thread that was woken last may have found an empty queue.
        ended += task.poll_queued();
        assert_eq!(ended, 1, "a wake was lost");
    });
}

#[test]
fn pollers_on_two_threads_pass_the_future_on() {
    two_pollers(Task::ask);
}

#[test]
fn wakes_by_value_hand_over_as_much_as_those_by_reference() {
    two_pollers(|task| {
        task.asked.fetch_add(1, Relaxed);
        task.queue_if(task.state.wake_by_value());
    });
}

/// A cancel gets the future as the last poll left it, and its drop sees what came before the cancel. This holds
/// whether the canceller drops it, or the current or next poll does.
#[test]
fn a_cancel_takes_the_future_over_and_ends_the_task_once() {
    check(|| {
        let task = Task::waiting(2);
        let cancelling = thread::spawn({
            let task = task.clone();
            move || {
                task.cancelled.store(1, Relaxed);
                // As in a shutdown: the future is dropped at once, without `start`.
                task.state.cancel() == Woken::Schedule && task.finish_cancelled()
            }
        });
        task.ask();
        let ended = task.poll_queued() + usize::from(cancelling.join().unwrap()) + task.poll_queued();
        assert_eq!(ended, 1);
    });
}

/// The thread that drops the last reference frees the task after all other uses.
#[test]
fn the_last_reference_frees_after_all_other_uses() {
    check(|| {
        // Three references: two of the new task, one more.
        let task = Task::waiting(1);
        task.state.retain();
        let drop_one = |task: &Task| {
            task.output.with(|_| ());
            if task.state.release() {
                // To a model, freeing is a write.
                task.output.with_mut(|_| ());
            }
        };
        let others = [task.clone(), task.clone()].map(|task| thread::spawn(move || drop_one(&task)));
        drop_one(&task);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
