//! A thread and the job that it runs.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use super::super::shim::AtomicUsize;

/// A thread and the job that it runs.
pub(in super::super) struct RunningJob<'a> {
    /// The pool's count of threads that return to the queue.
    returning: &'a AtomicUsize,
    ended: Cell<bool>,
}

impl<'a> RunningJob<'a> {
    pub(super) fn new(returning: &'a AtomicUsize) -> RunningJob<'a> {
        RunningJob { returning, ended: Cell::new(false) }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Call this when the job has its output, before notifying the task that waits for it. The notification
    /// must neither block nor run user code.
    ///
    /// The notified task often submits its next job at once, before this thread is back at the queue. Without
    /// this count it would wake a second thread for a job that the first one takes; the two would then continue
    /// in turns, each woken for nothing.
    pub(in super::super) fn ends(&self) {
        if !self.ended.replace(true) {
            self.returning.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for RunningJob<'_> {
    fn drop(&mut self) {
        if self.ended.get() {
            self.returning.fetch_sub(1, Relaxed);
        }
    }
}
