//! What the tasks of a loop may get without waiting, before the loop has a turn for everybody else.
//!
//! An await that is ready at once costs no turn of the loop. A task whose every await is, because its peer is faster
//! than it or its queue is full, would keep the loop to itself: no timer, no signal, no other task. So what is ready at
//! once is counted, per thread, and when the budget is spent the loop has a turn: before a read takes anything, and
//! after anything else, so that what several tasks send keeps its order.

use std::cell::Cell;

/// In bytes. As much as asyncio's stream readers hold before they have to wait for the loop.
const BUDGET: usize = 128 * 1024;
/// What an item costs besides its bytes.
const ITEM: usize = 128;
/// What an operation of the runtime costs.
const OPERATION: usize = 2048;

thread_local! {
    static SPENT: Cell<usize> = const { Cell::new(0) };
}

/// An item of so many bytes was ready at once.
pub(crate) fn spend_item(bytes: usize) {
    SPENT.set(SPENT.get().saturating_add(bytes + ITEM));
}

/// An operation was ready at once.
pub(crate) fn spend_operation() {
    SPENT.set(SPENT.get().saturating_add(OPERATION));
}

/// Somebody waits: the loop has its turn.
pub(crate) fn refill() {
    SPENT.set(0);
}

/// Whether it is the loop's turn. Then, once it had it, there is a new budget.
pub(crate) fn is_spent() -> bool {
    let spent = SPENT.get() >= BUDGET;
    if spent {
        refill();
    }
    spent
}
