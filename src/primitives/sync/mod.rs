//! `wakeloop.Queue` and `wakeloop.Event`: between tasks of any event loops, and between them and threads.
//!
//! | file | what it is |
//! |---|---|
//! | `sleeper` | one who waits: a task or a thread, and how it is woken |
//! | `line` | those who wait, in the order in which they came |
//! | `queue`, `event` | the state, under a lock of its own |
//! | `wait` | what can be waited for, by tasks and by threads in the same way |
//! | `objects` | a queue and an event as Python objects |
//! | `call` | waiting, as a coroutine |
//! | `blocking` | waiting, as a thread that blocks |
//! | `classes` | the methods of the Python classes |
//!
//! Nothing here runs on the runtime's workers: an operation that can be done is done where it is asked for, under a lock
//! that is held for some nanoseconds, and a task is woken by a message to its loop.
//!
//! The runtime's own channels have one receiver, and hold values that the garbage collector cannot see. Here, it must see
//! every item and every task that waits: a task that waits for a queue which nobody else has is garbage.

mod blocking;
mod call;
mod classes;
mod event;
mod line;
mod objects;
mod queue;
mod sleeper;
mod wait;

use pyo3::prelude::*;

/// Adds the classes to the module.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    call::make_type(module.py())?;
    classes::add_to(module)
}
