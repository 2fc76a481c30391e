//! The executor: workers that poll scheduled tasks and steal from each other.
//!
//! | part             | what it is                                                              |
//! |------------------|-------------------------------------------------------------------------|
//! | `worker`         | the loop of one worker and its private state                            |
//! | `shared`         | what all workers share: injector, idle word, list of tasks, driver      |
//! | `spawn`          | how a task comes to the workers                                         |
//! | `queue`          | the queues                                                              |
//! | `idle`, `park`   | which workers sleep, and how; README.md describes the protocol          |
//! | `watch`          | which worker looks after the driver while none sleeps in it             |
//! | `worker_threads` | the threads: started on demand, joined at the end                       |
//! | `owned`          | the live tasks, for the shutdown                                        |
//! | `current_thread` | a worker without a thread of its own, run by `block_on`                 |
//! | `simulated`      | how a test's `block_on` runs that worker: chosen order, controlled clock |
//! | `local`          | [`LocalSet`]: tasks that are not `Send`, polled by a future              |
//!
//! A scheduled task is a `Runnable` in exactly one place: a worker's LIFO slot, a worker's queue, the injector,
//! or held by a worker.
//!
//! Shutdown, in order: (1) the closing flag is set, and all workers are unparked; (2) each worker closes the
//! list of tasks, which drops the idle ones, and drops the tasks in its queue; (3) the last worker to leave
//! drops the injector's tasks until the list is empty, including those that another thread is about to inject;
//! (4) the driver notifies the remaining sockets and sleeps. So every future is dropped once, on a worker. A
//! worker that panicked, or that never started, leaves in the same way, and so do the others then.

mod current_thread;
mod idle;
mod local;
#[cfg(all(test, wakeloop_loom))]
#[path = "../../../tests/models/executor/injector.rs"]
mod locked_injector;
mod owned;
mod park;
mod queue;
mod shared;
mod simulated;
mod spawn;
mod watch;
mod worker;
mod worker_threads;

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../../tests/models/executor/parking.rs"]
mod model;

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../../tests/models/executor/current_thread.rs"]
mod current_thread_model;

pub(super) use current_thread::CurrentThread;
pub use local::{LocalSet, spawn_local};
pub(super) use park::Parker;
pub(super) use shared::{Options, Shared};
pub(super) use worker::{Worker, current_worker};
