//! The loop's counters. Only the loop's thread writes them.

use std::cell::Cell;

/// Counters since the loop was created.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) turns: Cell<u64>,
    pub(crate) polls: Cell<u64>,
    pub(crate) blocking_polls: Cell<u64>,
    pub(crate) events: Cell<u64>,
    pub(crate) callbacks: Cell<u64>,
    pub(crate) timers_fired: Cell<u64>,
    pub(crate) messages: Cell<u64>,
    pub(crate) connections_accepted: Cell<u64>,
    /// Time spent in blocking polls, in nanoseconds.
    pub(crate) idle: Cell<u64>,
    /// Time inside finished runs, in nanoseconds.
    pub(crate) running: Cell<u64>,
    /// When the current run began, on the monotonic clock in nanoseconds; 0 between runs.
    pub(crate) started: Cell<u64>,
}

impl Counters {
    /// Time inside `run_forever` up to `now`, in nanoseconds.
    pub(crate) fn running_at(&self, now: u64) -> u64 {
        let current = match self.started.get() {
            0 => 0,
            started => now.saturating_sub(started),
        };
        self.running.get() + current
    }
}

/// Adds to a counter.
#[inline(always)]
pub(crate) fn add(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get().wrapping_add(by));
}
