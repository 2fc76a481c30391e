//! Whose turn it is to use a file: operations run one after the other, in the order in which they were awaited.
//!
//! Reads at an offset share a turn, because they do not depend on the file's position. Everything else has it alone.
//! It may be passed on by any thread, with or without the GIL. A call whose loop is closed cannot use its turn, and
//! passes it on too.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::bridge::drop_on_loop::drop_attached;
use crate::bridge::waiter::WakeOnce;
use crate::fork::Owned;
use crate::poison::unpoisoned;
use crate::wait_queue::{Left, Place, WaitQueue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Alone,
    Together,
}

/// A call that waits for its turn. In a forked child it is a task of the parent that waits.
struct TurnWaiter {
    mode: Mode,
    waker: Owned<Arc<WakeOnce>>,
}

#[derive(Default)]
struct TurnQueue {
    /// How many have the turn.
    holders: usize,
    /// The one that has it, has it alone.
    alone: bool,
    waiting: WaitQueue<TurnWaiter>,
}

impl TurnQueue {
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
    queue: Mutex<TurnQueue>,
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, TurnQueue> {
        // The lock may be poisoned: no code under it panics half-way.
        unpoisoned(self.queue.lock())
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

    /// Takes the turn, if nobody waits for it.
    pub(super) fn take(&self, mode: Mode) -> bool {
        let mut queue = self.lock();
        let is_free = queue.waiting.is_empty() && queue.admits(mode);
        if is_free {
            queue.admit(mode);
        }
        is_free
    }

    /// As [`Turn::take`], or else a place in the queue, whose owner `waker` wakes.
    pub(super) fn queue(&self, mode: Mode, waker: Arc<WakeOnce>) -> Result<(), Place> {
        let mut queue = self.lock();
        if queue.waiting.is_empty() && queue.admits(mode) {
            queue.admit(mode);
            return Ok(());
        }
        Err(queue.waiting.join(None, TurnWaiter { mode, waker: Owned::new(waker) }))
    }

    /// Takes the turn, if it was passed to this place.
    pub(super) fn redeem(&self, place: Place) -> bool {
        self.lock().waiting.consume(place)
    }

    /// Gives the place up, or the turn if it was passed to this place meanwhile. Call it once, instead of
    /// [`Turn::redeem`].
    pub(super) fn give_up(self: &Arc<Self>, place: Place) {
        let left = self.lock().waiting.leave(place);
        match &left {
            Left::Notified => self.release(),
            // Those behind it may share the turn of the present holders.
            Left::Waiting(waiting) if waiting.mode == Mode::Alone => self.admit_more(),
            Left::Waiting(_) | Left::Served => {}
        }
        // The waiter goes on the thread of its loop, which is attached.
        drop_attached(left);
    }

    /// One more of those who share the turn has it.
    pub(super) fn share(&self) {
        self.lock().holders += 1;
    }

    /// One of those who have the turn is done. The last one passes it on.
    pub(super) fn release(self: &Arc<Self>) {
        let mut queue = self.lock();
        queue.holders -= 1;
        let (mut woken, mut gone) = (Vec::new(), Vec::new());
        while queue.waiting.first().is_some_and(|next| queue.admits(next.mode))
            && let Some((place, next)) = queue.waiting.notify_first()
        {
            if next.waker.get().is_some_and(|waker| waker.is_gone()) {
                queue.waiting.consume(place);
                gone.push(next);
            } else {
                queue.admit(next.mode);
                woken.push((place, next));
            }
        }
        drop(queue);
        for (place, next) in woken {
            if let Some(waiter) = next.waker.get().and_then(|waker| waker.take()) {
                let turn = self.clone();
                waiter.or_else(move || turn.give_up(place)).wake();
            }
        }
        drop(gone);
    }

    fn admit_more(self: &Arc<Self>) {
        let mut queue = self.lock();
        if queue.holders > 0 {
            // As if one more holder had come and gone.
            queue.holders += 1;
            drop(queue);
            self.release();
        }
    }
}
