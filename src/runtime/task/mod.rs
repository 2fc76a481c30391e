//! A task: one heap allocation with a future, later its output, and everything needed to schedule it.
//!
//! | part       | what it is                                                                      |
//! |------------|---------------------------------------------------------------------------------|
//! | `state`    | the one atomic word that decides who may do what; read its head first           |
//! | `header`   | what all tasks have in common, and the right to poll one                        |
//! | `cell`     | the allocation: header, future or output, and the operations on them            |
//! | `waker`    | the `Waker` of a task                                                           |
//! | `join`     | [`JoinHandle`], [`AbortHandle`], [`JoinError`], [`TaskPanic`]                   |
//!
//! Rules of access:
//!
//! 1. The future is touched only by the holder of the task's [`Runnable`], of which there is at most one.
//! 2. The holder writes the output before `COMPLETE`. After that, the output belongs to the `JoinHandle` if it
//!    was alive at that moment, else to the completer.
//! 3. The join waker's slot belongs to the `JoinHandle` while `JOIN_WAKER` is clear. While it is set, both
//!    sides only read. With `COMPLETE`, a set slot passes to the completer, who takes the waker out.
//! 4. The list links are touched only under the lock of the list.
//! 5. Only the holder of the `Runnable` follows the pointer to the home: the executor, the set of a local task,
//!    or the running job. Until the task is complete the first two cannot be freed (see `executor::owned`), and
//!    the third is on that thread's stack. Only the holder reads or changes what the header says about the wake.
//!
//! The holder of the `Runnable` drops a future as soon as it is ready, panicked or was cancelled. A waker or a
//! `JoinHandle` never does.

mod cell;
mod header;
mod join;
mod state;
mod waker;

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../../tests/models/task/lifecycle.rs"]
mod model;
#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../../tests/models/task/state.rs"]
mod state_model;

pub(super) use cell::{job_ends, new, new_job, new_local};
pub(super) use header::{Header, Home, HomeKind, Runnable, Sample};
pub use join::{AbortHandle, JoinError, JoinHandle, TaskPanic};
