//! Watching the scheduler at work: what the demo prints.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// One step in the life of a task or timer. Tasks are named by a number that is unique among live tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A task came into being and was put into a ready queue.
    Spawned {
        /// The task.
        task: usize,
    },
    /// A worker is about to poll it.
    Polled {
        /// The task.
        task: usize,
    },
    /// The poll found that it has to wait.
    Pending {
        /// The task.
        task: usize,
    },
    /// Something it waits for happened: it is in a ready queue again.
    Woken {
        /// The task.
        task: usize,
    },
    /// It returned, panicked or was cancelled.
    Completed {
        /// The task.
        task: usize,
    },
    /// A sleep entered the timer heap.
    TimerArmed {
        /// When it is due.
        deadline: Instant,
    },
    /// The driver found a sleep due.
    TimerFired {
        /// When it was due.
        deadline: Instant,
    },
    /// A worker has nothing to do and sleeps.
    Parked {
        /// The worker's number.
        worker: usize,
    },
    /// A worker woke up.
    Unparked {
        /// The worker's number.
        worker: usize,
    },
}

/// Receives the events of a runtime built with [`Builder::tracer`](super::Builder::tracer).
///
/// Called on whichever thread the event happens, in the middle of scheduling: be quick, and do not spawn or wake. A
/// panic in it is reported like any other and goes no further.
pub trait Tracer: Send + Sync {
    /// Something happened just now.
    fn event(&self, event: TraceEvent);
}

/// Tells a tracer, which is not the runtime's own code: a panic in it must not take a task or a worker along.
pub(super) fn report(tracer: &dyn Tracer, event: TraceEvent) {
    let _ = catch_unwind(AssertUnwindSafe(|| tracer.event(event)));
}
