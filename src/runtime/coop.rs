//! The cooperative budget: how a task that is always ready still lets others run.
//!
//! Each turn of a worker gives the task it polls a number of units. Leaf futures (sockets, timers, channels,
//! join handles) spend one per success; when none is left they return `Pending` and wake the task at once, so it
//! goes to the back of the queue. Outside a worker nothing is limited.

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
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            BUDGET.set(self.0);
        }
    }
    let _restore = Restore(BUDGET.replace(UNITS));
    poll()
}

/// Whether the current turn has units left.
pub(super) fn has_budget() -> bool {
    BUDGET.get() != 0
}

/// Spends one unit, or asks the caller to return `Pending`; the task is then woken already.
pub(super) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    let left = BUDGET.get();
    if left == 0 {
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    if left != UNLIMITED {
        BUDGET.set(left - 1);
    }
    Poll::Ready(())
}
