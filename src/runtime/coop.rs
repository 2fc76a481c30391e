//! The cooperative budget: how a task that is always ready still lets others run.
//!
//! Each poll of a task by a worker has a number of units. Leaf futures (sockets, timers, channels, join
//! handles) spend one per success. When none is left they return `Pending` and wake the task at once, so it
//! goes to the back of the queue. A future that has to wait costs nothing. Outside a worker there is no limit.

use std::task::{Context, Poll};

use super::shim::thread_cell;

/// Units per poll. A guess in the range that other runtimes use: some tens of microseconds of socket reads.
const UNITS: u32 = 128;
const UNLIMITED: u32 = u32::MAX;

thread_cell! {
    static BUDGET: u32 = UNLIMITED;
}

/// Starts the budget of a task. The worker calls this before each poll.
pub(super) fn refill() {
    BUDGET.set(UNITS);
}

/// Ends the limit. The worker calls this after each poll.
pub(super) fn lift() {
    BUDGET.set(UNLIMITED);
}

/// Runs `poll` with a budget of its own. The outer budget, if any, is restored afterwards.
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

/// Grants a single unit, for when nothing is left.
#[cold]
fn lend() -> Restore {
    Restore(BUDGET.replace(1))
}

/// Whether the current turn has units left.
pub(super) fn has_budget() -> bool {
    BUDGET.get() != 0
}

/// Polls a leaf future, which spends a unit if it is ready. If no unit is left, it is not polled: the task is
/// woken, to be polled again later.
pub(super) fn spend<T>(cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    if !has_budget() {
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    let polled = poll(cx);
    let left = BUDGET.get();
    // A pending future costs nothing: a task may wait for any number of things, and has to ask all of them.
    if polled.is_ready() && left != UNLIMITED {
        BUDGET.set(left.saturating_sub(1));
    }
    polled
}

/// The budget of several futures in one poll. When one of them uses the budget up, each later one still gets a
/// unit; otherwise a busy future would starve those after it. If no unit was left at the start, no future gets
/// one, and the task yields.
#[derive(Debug)]
pub struct Shares {
    any: bool,
}

impl Shares {
    /// Call this before the first future is polled. The first one takes what there is and needs no share.
    #[allow(clippy::new_without_default)]
    #[inline]
    pub fn new() -> Shares {
        Shares { any: has_budget() }
    }

    /// Polls a future after the first.
    #[inline]
    pub fn poll<R>(&self, poll: impl FnOnce() -> R) -> R {
        let _lent = (self.any && !has_budget()).then(lend);
        poll()
    }
}
