//! Reports scheduling events. The demo prints them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// One step of a task or timer. A task's number is unique among live tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A task was created and put into a ready queue.
    Spawned {
        /// The task.
        task: usize,
    },
    /// A worker is about to poll the task.
    Polled {
        /// The task.
        task: usize,
    },
    /// The poll returned `Pending`.
    Pending {
        /// The task.
        task: usize,
    },
    /// The task was woken: it is in a ready queue again.
    Woken {
        /// The task.
        task: usize,
    },
    /// The task returned, panicked or was cancelled.
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
/// It is called on the thread where the event happens, in the middle of scheduling: be quick, and do not spawn
/// or wake. A panic in it is printed like any other, and has no further effect.
pub trait Tracer: Send + Sync {
    /// Receives an event that has just happened.
    fn event(&self, event: TraceEvent);
}

/// Calls a tracer. It is foreign code: a panic in it must not end a task or a worker.
pub(super) fn report(tracer: &dyn Tracer, event: TraceEvent) {
    let _ = catch_unwind(AssertUnwindSafe(|| tracer.event(event)));
}
