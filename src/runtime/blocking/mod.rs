//! The pool for blocking functions. Threads start on demand and end when idle.
//!
//! A job is a task whose future runs the function in its first and only poll, so `JoinHandle`, panics and
//! cancellation are those of tasks. Aborting a job drops it if it has not begun; a running job runs on.
//!
//! At most one thread at a time is on its way to the queue: an idle thread that was called (woken through the
//! condvar), or a thread that is being started. When it arrives and finds more jobs than its own, it calls the
//! next thread before it begins. So the jobs of a batch get one thread each, one after the other, if they
//! block. If they are tiny, the first few threads finish them, and no further thread is woken for nothing. The
//! submitter, usually a worker in a poll, pays for at most one wake. A thread that is about to notify the task
//! that waits for its job counts as on its way too, because that task often submits its next job before the
//! thread is back at the queue.

mod pool;
mod running_job;
mod spawn;

pub use pool::{BlockingPool, NoThread};
pub(super) use pool::{Job, Notifying, Pool, PoolMetrics};
pub(super) use running_job::RunningJob;
pub use spawn::spawn_blocking;
