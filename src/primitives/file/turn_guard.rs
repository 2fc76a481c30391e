//! The right to use a file, which may be dropped on any thread, with or without the GIL.

use std::sync::{Arc, Mutex};

use super::shared::SharedFile;
use super::turn::Mode;
use crate::bridge::waiter::WakeOnce;
use crate::fork::Owner;
use crate::poison::unpoisoned;
use crate::wait_queue::Place;

/// The right to use the file. Dropping it passes the turn on.
#[derive(Debug)]
pub(super) struct TurnGuard {
    shared: Arc<SharedFile>,
    owner: Owner,
}

impl TurnGuard {
    /// Takes the turn, if nobody waits for it.
    pub(super) fn take(shared: &Arc<SharedFile>, mode: Mode) -> Option<TurnGuard> {
        shared.turn.take(mode).then(|| TurnGuard::of(shared))
    }

    /// As [`TurnGuard::take`], or else a place in the queue, whose owner `waker` wakes.
    pub(super) fn queue(
        shared: &Arc<SharedFile>,
        mode: Mode,
        waker: Arc<WakeOnce>,
    ) -> Result<TurnGuard, Place> {
        shared.turn.queue(mode, waker).map(|()| TurnGuard::of(shared))
    }

    /// Takes the turn, if it was passed to this place.
    pub(super) fn redeem(shared: &Arc<SharedFile>, place: Place) -> Option<TurnGuard> {
        shared.turn.redeem(place).then(|| TurnGuard::of(shared))
    }

    fn of(shared: &Arc<SharedFile>) -> TurnGuard {
        TurnGuard { shared: shared.clone(), owner: Owner::this_process() }
    }

    /// The same turn once more. It passes on when all its guards were dropped.
    pub(super) fn again(&self) -> TurnGuard {
        self.shared.turn.share();
        TurnGuard { shared: self.shared.clone(), owner: self.owner.clone() }
    }
}

/// The turn of a call that has yielded, or of a job whose result is on its way to the task. The task takes it, or else
/// what its loop drops when it is closed.
#[derive(Clone, Debug)]
pub(super) struct TurnOfCall(Arc<Mutex<Option<TurnGuard>>>);

impl TurnOfCall {
    pub(super) fn new(turn: TurnGuard) -> TurnOfCall {
        TurnOfCall(Arc::new(Mutex::new(Some(turn))))
    }

    /// The turn, once.
    pub(super) fn take(&self) -> Option<TurnGuard> {
        unpoisoned(self.0.lock()).take()
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
