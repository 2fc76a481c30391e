//! The state word in every order, with as many pollers as there are: what [`super::cell`] does with it, and nothing
//! else. Queues and pollers are threads and a mutex; what a wake hands over, what a poll leaves behind and what is
//! freed are plain memory, of which loom says when two threads touch it at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::state::{Paused, Start, State, Woken};
use crate::runtime::shim::UnsafeCell;
use crate::runtime::shim::model::{AtomicUsize, Mutex, check, thread};

/// A task whose future counts its polls and is ready when `wakes` of them have been asked for.
struct Task {
    state: State,
    /// Rule 1: touched by the holder of the `Runnable` only.
    future: UnsafeCell<usize>,
    /// Rule 2: the output.
    output: UnsafeCell<usize>,
    /// What wakers hand to the poll: written before the wake, relaxed, and not lost.
    asked: AtomicUsize,
    wanted: usize,
    queue: Mutex<VecDeque<()>>,
}

// SAFETY: the state word hands the cells to one thread at a time, which is what the models try.
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

impl Task {
    /// A task that was polled once and waits.
    fn waiting(wanted: usize) -> Arc<Task> {
        let task = Arc::new(Task {
            state: State::new(),
            future: UnsafeCell::new(0),
            output: UnsafeCell::new(0),
            asked: AtomicUsize::new(0),
            wanted,
            queue: Mutex::new(VecDeque::new()),
        });
        task.run();
        task
    }

    fn ask(&self) {
        self.asked.fetch_add(1, Relaxed);
        if self.state.wake_by_ref() == Woken::Schedule {
            self.queue.lock().unwrap().push_back(());
        }
    }

    /// The steps of `Task::run`. True when the task is complete.
    fn run(&self) -> bool {
        loop {
            if self.state.start() == Start::Cancel {
                return self.finish();
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
                Paused::Cancel => return self.finish(),
            }
        }
    }

    fn finish(&self) -> bool {
        // SAFETY: rules 1 and 2.
        self.future.with_mut(|polls| self.output.with_mut(|output| unsafe { *output = *polls }));
        let _ = self.state.complete();
        true
    }

    /// A worker: polls what is queued until the task is complete.
    fn work(&self) {
        while !self.state.load().is_complete() {
            let queued = self.queue.lock().unwrap().pop_front();
            match queued {
                Some(()) => drop(self.run()),
                None => thread::yield_now(),
            }
        }
        // SAFETY: rule 2: complete, and nobody writes it again.
        self.output.with(|output| assert!(unsafe { *output } > 1));
    }
}

/// The future wanders: each wake may be followed by a poll on another thread, which finds it as the last poll left it.
#[test]
fn pollers_on_two_threads_pass_the_future_on() {
    check(|| {
        let task = Task::waiting(2);
        let other = thread::spawn({
            let task = task.clone();
            move || {
                task.ask();
                let queued = task.queue.lock().unwrap().pop_front();
                queued.is_some_and(|()| task.run())
            }
        });
        task.ask();
        let queued = task.queue.lock().unwrap().pop_front();
        let mut complete = queued.is_some_and(|()| task.run());
        complete |= other.join().unwrap();
        // Whoever was woken last found nothing to do, as the other polled for both.
        while let Some(()) = { task.queue.lock().unwrap().pop_front() } {
            complete |= task.run();
        }
        assert!(complete, "a wake was lost");
    });
}

/// The output is seen by whoever sees COMPLETE.
#[test]
fn an_output_is_seen_with_the_completion() {
    check(|| {
        let task = Task::waiting(1);
        let worker = thread::spawn({
            let task = task.clone();
            move || task.work()
        });
        task.ask();
        worker.join().unwrap();
    });
    check(|| {
        let task = Task::waiting(1);
        task.ask();
        let polling = thread::spawn({
            let task = task.clone();
            move || task.run()
        });
        if task.state.load().is_complete() {
            // SAFETY: rule 2.
            task.output.with(|output| assert_eq!(unsafe { *output }, 2));
        }
        assert!(polling.join().unwrap());
    });
}

/// Two owned wakers at once, with the poll between them.
#[test]
fn wakes_by_value_hand_over_as_much_as_those_by_reference() {
    check(|| {
        let task = Task::waiting(2);
        task.state.retain();
        task.state.retain();
        let ask = |task: &Task| {
            task.asked.fetch_add(1, Relaxed);
            if task.state.wake_by_value() == Woken::Schedule {
                task.queue.lock().unwrap().push_back(());
            }
        };
        let other = thread::spawn({
            let task = task.clone();
            move || ask(&task)
        });
        ask(&task);
        let mut complete = false;
        let queued = task.queue.lock().unwrap().pop_front();
        complete |= queued.is_some_and(|()| task.run());
        other.join().unwrap();
        while let Some(()) = { task.queue.lock().unwrap().pop_front() } {
            complete |= task.run();
        }
        assert!(complete, "a wake was lost");
    });
}

/// A cancel takes the future from wherever the last poll left it.
#[test]
fn a_cancel_from_outside_ends_the_task_once() {
    check(|| {
        let task = Task::waiting(1);
        let cancelling = thread::spawn({
            let task = task.clone();
            move || {
                task.state.cancel() == Woken::Schedule && {
                    task.queue.lock().unwrap().push_back(());
                    let queued = task.queue.lock().unwrap().pop_front();
                    queued.is_some_and(|()| task.run())
                }
            }
        });
        task.ask();
        let queued = task.queue.lock().unwrap().pop_front();
        let mut ended = usize::from(queued.is_some_and(|()| task.run()));
        ended += usize::from(cancelling.join().unwrap());
        while let Some(()) = { task.queue.lock().unwrap().pop_front() } {
            ended += usize::from(task.run());
        }
        assert_eq!(ended, 1);
    });
}

/// Who takes the last reference frees what all others have used before.
#[test]
fn the_last_reference_frees_after_everybody_elses_last_use() {
    check(|| {
        // Three references: two of the new task, one more.
        let task = Task::waiting(1);
        task.state.retain();
        let drop_one = |task: &Task| {
            task.output.with(|_| ());
            if task.state.release() {
                // Freeing, to a model, is a write.
                task.output.with_mut(|_| ());
            }
        };
        let others = [task.clone(), task.clone()].map(|task| thread::spawn(move || drop_one(&task)));
        drop_one(&task);
        others.map(|other| other.join().unwrap());
    });
}
