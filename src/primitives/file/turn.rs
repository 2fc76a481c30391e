//! Whose turn it is to use a file: operations run one after the other, in the order in which they were awaited.
//!
//! Reads at an offset share a turn, because they do not depend on the file's position. Everything else has it alone.
//! A guard may be dropped on any thread, with or without the GIL.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Shared;
use crate::bridge::drop_on_loop::drop_attached;
use crate::bridge::waiter::WakeOnce;
use crate::fork::{Owned, Owner};
use crate::wait_queue::{Left, Place, WaitQueue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Alone,
    Together,
}

/// A call that waits for its turn. In a forked child it is a task of the parent that waits.
struct Waiting {
    mode: Mode,
    waker: Owned<Arc<WakeOnce>>,
}

#[derive(Default)]
struct Queue {
    /// How many have the turn.
    holders: usize,
    /// The one that has it, has it alone.
    alone: bool,
    waiting: WaitQueue<Waiting>,
}

impl Queue {
    fn admits(&self, mode: Mode) -> bool {
        self.holders == 0 || (mode == Mode::Together && !self.alone)
    }

    fn admit(&mut self, mode: Mode) {
        self.holders += 1;
        self.alone = mode == Mode::Alone;
    }
}

#[derive(Default)]
pub(super) struct Turn {
    queue: Mutex<Queue>,
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The lock may be poisoned: no code under it panics half-way.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is an operation under way?
    pub(super) fn is_taken(&self) -> bool {
        self.lock().holders > 0
    }

    /// Would an operation have its turn at once?
    pub(super) fn is_free(&self) -> bool {
        let queue = self.lock();
        queue.holders == 0 && queue.waiting.is_empty()
    }

    fn release(&self) {
        let mut queue = self.lock();
        queue.holders -= 1;
        let mut woken = Vec::new();
        while queue.waiting.first().is_some_and(|next| queue.admits(next.mode))
            && let Some((_, next)) = queue.waiting.notify_first()
        {
            queue.admit(next.mode);
            woken.push(next);
        }
        drop(queue);
        for next in woken {
            if let Some(waiter) = next.waker.get().and_then(|waker| waker.take()) {
                waiter.wake();
            }
        }
    }
}

/// The right to use the file. Dropping it passes the turn on.
#[derive(Debug)]
pub(super) struct TurnGuard {
    shared: Arc<Shared>,
    owner: Owner,
}

impl TurnGuard {
    /// Takes the turn, if nobody waits for it.
    pub(super) fn take(shared: &Arc<Shared>, mode: Mode) -> Option<TurnGuard> {
        let mut queue = shared.turn.lock();
        (queue.waiting.is_empty() && queue.admits(mode)).then(|| {
            queue.admit(mode);
            TurnGuard::of(shared)
        })
    }

    /// As [`TurnGuard::take`], or else a place in the queue, whose owner `waker` wakes.
    pub(super) fn queue(shared: &Arc<Shared>, mode: Mode, waker: Arc<WakeOnce>) -> Result<TurnGuard, Place> {
        let mut queue = shared.turn.lock();
        if queue.waiting.is_empty() && queue.admits(mode) {
            queue.admit(mode);
            return Ok(TurnGuard::of(shared));
        }
        Err(queue.waiting.join(None, Waiting { mode, waker: Owned::new(waker) }))
    }

    /// Takes the turn, if it was passed to this place.
    pub(super) fn redeem(shared: &Arc<Shared>, place: Place) -> Option<TurnGuard> {
        shared.turn.lock().waiting.consume(place).then(|| TurnGuard::of(shared))
    }

    /// Gives the place up, or the turn if it was passed to this place meanwhile. Call it once, instead of
    /// [`TurnGuard::redeem`].
    pub(super) fn give_up(shared: &Arc<Shared>, place: Place) {
        let left = shared.turn.lock().waiting.leave(place);
        match &left {
            Left::Notified => drop(TurnGuard::of(shared)),
            // Those behind it may share the turn of the present holders.
            Left::Waiting(waiting) if waiting.mode == Mode::Alone => shared.turn.admit_more(),
            Left::Waiting(_) | Left::Served => {}
        }
        // The waiter goes on the thread of its loop, which is attached.
        drop_attached(left);
    }

    fn of(shared: &Arc<Shared>) -> TurnGuard {
        TurnGuard { shared: shared.clone(), owner: Owner::this_process() }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The same turn once more. It passes on when all its guards were dropped.
    pub(super) fn again(&self) -> TurnGuard {
        self.shared.turn.lock().holders += 1;
        TurnGuard { shared: self.shared.clone(), owner: self.owner.clone() }
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        // In a forked child the owners of places are tasks of the parent.
        if self.owner.is_this_process() {
            self.shared.turn.release();
        }
    }
}

impl Turn {
    fn admit_more(&self) {
        let mut queue = self.lock();
        if queue.holders > 0 {
            // As if one more holder had come and gone.
            queue.holders += 1;
            drop(queue);
            self.release();
        }
    }
}
