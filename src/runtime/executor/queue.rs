//! The queues of scheduled tasks: one per worker, which others steal from, and one for all.
//!
//! Private types over crossbeam-deque, so that another structure can be tried in its place.

#[cfg(not(all(test, wakeloop_loom)))]
use crossbeam_deque::Injector as Deque;
use crossbeam_deque::{Steal, Stealer, Worker};

use super::super::task::Runnable;
#[cfg(all(test, wakeloop_loom))]
use super::locked_injector::Injector as Deque;

/// A worker's own queue, first in, first out. One thread owns it.
pub(super) struct Local(Worker<Runnable>);

/// The side of a [`Local`] that other workers steal from.
pub(super) struct Remote(Stealer<Runnable>);

/// The queue for tasks that come from outside the workers. Any thread pushes, workers take batches.
pub(super) struct Injector(Deque<Runnable>);

/// The most that a worker takes from the injector at a time. It is far more than the worker can poll before it
/// looks again. So a flood of tasks from outside passes through the queues in about the order in which it came,
/// and does not trickle in between the worker's own tasks.
const MAX_SHARE: usize = 4096;
/// About how many tasks one call takes from the injector: crossbeam's blocks have 63 tasks, and a batch is from
/// one block.
const FEW: usize = 32;

impl Local {
    pub(super) fn new() -> (Local, Remote) {
        let worker = Worker::new_fifo();
        let stealer = worker.stealer();
        // The first steal in a process creates crossbeam's collector. If the process forks while a worker does
        // that, the child's workers wait for it forever. So the thread that starts the runtime does it here,
        // because its program does not fork meanwhile.
        let _ = stealer.steal();
        (Local(worker), Remote(stealer))
    }

    pub(super) fn push(&self, task: Runnable) {
        self.0.push(task);
    }

    pub(super) fn pop(&self) -> Option<Runnable> {
        self.0.pop()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Remote {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Moves about half of the tasks to `to` and returns one of them.
    pub(super) fn steal(&self, to: &Local) -> Option<Runnable> {
        until_settled(|| self.0.steal_batch_and_pop(&to.0))
    }
}

impl Injector {
    pub(super) fn new() -> Injector {
        Injector(Deque::new())
    }

    pub(super) fn push(&self, task: Runnable) {
        self.0.push(task);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Pops one task.
    pub(super) fn pop(&self) -> Option<Runnable> {
        until_settled(|| self.0.steal())
    }

    /// Moves a fair share for one of `workers` workers to `to` and returns one of the tasks.
    pub(super) fn take_share(&self, to: &Local, workers: usize) -> Option<Runnable> {
        if self.0.is_empty() {
            return None;
        }
        let share = (self.0.len() / workers + 1).min(MAX_SHARE);
        let first = until_settled(|| self.0.steal_batch_with_limit_and_pop(&to.0, share))?;
        // One call gives a few dozen tasks at most. How many it gave can only be estimated, because others
        // steal from `to` meanwhile.
        let before = to.len();
        for _ in 0..share / FEW {
            let taken = to.len().saturating_sub(before);
            if taken >= share {
                break;
            }
            let more = until_settled(|| self.0.steal_batch_with_limit_and_pop(&to.0, share - taken));
            let Some(task) = more else { break };
            // This was the first task of its batch. It is queued behind the others, a few places late.
            to.push(task);
        }
        Some(first)
    }
}

/// Retries a steal that lost a race. `Retry` means that another thread made progress.
fn until_settled(mut attempt: impl FnMut() -> Steal<Runnable>) -> Option<Runnable> {
    loop {
        match attempt() {
            Steal::Success(task) => return Some(task),
            Steal::Empty => return None,
            Steal::Retry => std::hint::spin_loop(),
        }
    }
}
