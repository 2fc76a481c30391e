//! The cooperative budget: how a task that is always ready still lets others run.
//!
//! Each turn of a worker gives the task it polls a number of units. Leaf futures (sockets, timers, channels,
//! join handles) spend one per success; when none is left they return `Pending` and wake the task at once, so it
//! goes to the back of the queue. A future that has to wait costs nothing. Outside a worker nothing is limited.

use std::task::{Context, Poll};

use super::shim::thread_cell;

/// Units per turn. A guess, in the range other runtimes use: some tens of microseconds of socket reads.
const UNITS: u32 = 128;
const UNLIMITED: u32 = u32::MAX;

thread_cell! {
    static BUDGET: u32 = UNLIMITED;
}

/// The worker is about to poll a task.
pub(super) fn refill() {
    BUDGET.set(UNITS);
}

/// The poll is over.
pub(super) fn lift() {
    BUDGET.set(UNLIMITED);
}

/// Runs `poll` with the budget of a turn, inside another or none, which then goes on with what it had.
pub(super) fn in_own_turn<R>(poll: impl FnOnce() -> R) -> R {
    let _restore = Restore(BUDGET.replace(UNITS));
    poll()
}

/// Puts a budget back when dropped.
struct Restore(u32);

impl Drop for Restore {
    fn drop(&mut self) {
        BUDGET.set(self.0);
    }
}

/// A single unit for whom nothing is left.
#[cold]
fn lend() -> Restore {
    Restore(BUDGET.replace(1))
}

/// Whether the current turn has units left.
pub(super) fn has_budget() -> bool {
    BUDGET.get() != 0
}

/// Polls a leaf future, which spends a unit if it is ready. Without a unit left it is not polled: the task is woken to
/// come again.
pub(super) fn spend<T>(cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    if !has_budget() {
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    let polled = poll(cx);
    let left = BUDGET.get();
    // One that has to wait costs nothing: a task may wait for any number of things, and has to ask all of them.
    if polled.is_ready() && left != UNLIMITED {
        BUDGET.set(left.saturating_sub(1));
    }
    polled
}

/// Several futures in one poll: when one of them has used the budget up, there is a unit for each of those after it, or
/// they would not be heard as long as it is busy. None if nothing was left at the beginning: then the task gives way.
#[derive(Debug)]
pub struct Shares {
    any: bool,
}

impl Shares {
    /// Before the first of them is polled; that one takes what there is and needs no share.
    #[allow(clippy::new_without_default)]
    #[inline]
    pub fn new() -> Shares {
        Shares { any: has_budget() }
    }

    /// Polls a later one.
    #[inline]
    pub fn poll<R>(&self, poll: impl FnOnce() -> R) -> R {
        let _lent = (self.any && !has_budget()).then(lend);
        poll()
    }
}
