//! Where scheduled tasks wait: a queue per worker that others steal from, and one for everybody.
//!
//! Private types over crossbeam-deque, so that another structure can be tried behind them.

#[cfg(not(wakeloop_loom))]
use crossbeam_deque::Injector as Deque;
use crossbeam_deque::{Steal, Stealer, Worker};

use super::super::task::Runnable;
#[cfg(wakeloop_loom)]
use super::locked_injector::Injector as Deque;

/// A worker's own queue, first in first out. Owned by one thread.
pub(super) struct Local(Worker<Runnable>);

/// The end of a [`Local`] that other workers take from.
pub(super) struct Remote(Stealer<Runnable>);

/// The queue for tasks that come from outside the workers. Any thread pushes, workers take batches.
pub(super) struct Injector(Deque<Runnable>);

/// What a worker takes from the injector at a time is at most this much. Far more than it can poll before it looks
/// again, so that a flood from outside passes through the queues in about the order it came, and is not dripped in
/// between what the worker has to do itself.
const MAX_SHARE: usize = 4096;
/// What one call takes from the injector on average, about: its blocks are of 63, and a batch is from one block.
const FEW: usize = 32;

impl Local {
    pub(super) fn new() -> (Local, Remote) {
        let worker = Worker::new_fifo();
        let stealer = worker.stealer();
        // The first steal of a process makes crossbeam's collector. In a process that forks while a worker does that, the
        // child's workers would wait for ever for it to be done. So the thread that starts the runtime does it, whose
        // program does not fork meanwhile.
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

    /// Takes one task.
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
        // One call gives a few dozen at most. What it gave can only be estimated: others steal from `to` meanwhile.
        let before = to.len();
        for _ in 0..share / FEW {
            let taken = to.len().saturating_sub(before);
            if taken >= share {
                break;
            }
            let more = until_settled(|| self.0.steal_batch_with_limit_and_pop(&to.0, share - taken));
            let Some(task) = more else { break };
            // The first of each further batch; a few places late.
            to.push(task);
        }
        Some(first)
    }
}

/// A steal that lost a race is tried again: `Retry` means that somebody else got on.
fn until_settled(mut attempt: impl FnMut() -> Steal<Runnable>) -> Option<Runnable> {
    loop {
        match attempt() {
            Steal::Success(task) => return Some(task),
            Steal::Empty => return None,
            Steal::Retry => std::hint::spin_loop(),
        }
    }
}
