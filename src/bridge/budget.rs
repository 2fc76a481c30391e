//! The cooperative budget: how much a thread's tasks may do without yielding to the loop.
//!
//! An await that is ready at once does not yield. If all awaits of a task are ready, for example because its peer is
//! faster than the task or its queue is full, the loop could run no timer, no signal handler and no other task. So each
//! thread counts what was ready at once. When the budget is spent, the task yields to the loop for one turn. A read
//! yields before it takes data; any other operation yields after it is done, so that the order of what several tasks
//! send does not change.

use std::cell::Cell;

/// In bytes. asyncio's stream readers buffer this much before they pause reading.
const BUDGET: usize = 128 * 1024;
/// The cost of an item in addition to its bytes.
const ITEM: usize = 128;
/// The cost of an operation of the runtime.
const OPERATION: usize = 2048;

thread_local! {
    static SPENT: Cell<usize> = const { Cell::new(0) };
}

/// Counts an item of `bytes` bytes that was ready at once.
pub(crate) fn spend_item(bytes: usize) {
    SPENT.set(SPENT.get().saturating_add(bytes + ITEM));
}

/// Counts items whose bytes were counted already.
pub(crate) fn spend_items(count: usize) {
    SPENT.set(SPENT.get().saturating_add(count.saturating_mul(ITEM)));
}

/// Counts an operation that was ready at once.
pub(crate) fn spend_operation() {
    SPENT.set(SPENT.get().saturating_add(OPERATION));
}

/// Restores the budget. Called when a task begins to wait, because the loop then runs.
pub(crate) fn refill() {
    SPENT.set(0);
}

/// Is the budget spent? If so, this restores it, and the caller has to yield to the loop.
pub(crate) fn is_spent() -> bool {
    let spent = SPENT.get() >= BUDGET;
    if spent {
        refill();
    }
    spent
}
