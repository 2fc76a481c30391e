//! The state word of a task: this file is its specification.
//!
//! ```text
//!   63 ........ 6   5 4     3           2            1               0
//!   references      WAKES   CANCELLED   JOIN_WAKER   JOIN_INTEREST   COMPLETE
//! ```
//!
//! - `COMPLETE`: the future was dropped. The output is in its place, unless nobody wants it. Never cleared.
//! - `JOIN_INTEREST`: the `JoinHandle` is alive. Its drop clears the bit, once.
//! - `JOIN_WAKER`: the slot holds a waker for the completer to take. Only the `JoinHandle` sets or clears the
//!   bit, and only before `COMPLETE`.
//! - `CANCELLED`: the future is to be dropped instead of polled. Never cleared. Setting it also counts as a
//!   wake.
//! - `WAKES`: 0, 1 or 2, a saturating count. See the phase table.
//! - references: one for the live task (from spawn to completion), one for the `JoinHandle`, one per
//!   `AbortHandle` and `Waker`. The thread that releases the last reference frees the memory.
//!
//! | WAKES | COMPLETE | phase     | who may touch the future                        |
//! |-------|----------|-----------|-------------------------------------------------|
//! | 0     | 0        | idle      | nobody, until someone wakes it (0 → 1)          |
//! | 1     | 0        | scheduled | the one holder of its `Runnable`: queue, worker |
//! | 2     | 0        | scheduled, woken again | the same; after the poll the `Runnable` is queued again |
//! | any   | 1        | complete  | nobody; the output belongs to the `JoinHandle` while JOIN_INTEREST, else to the completer |
//!
//! There is no "running" bit. Moving `WAKES` from 0 to 1 creates the task's only `Runnable`, which must be
//! queued. A wake while the task is queued or being polled moves 1 to 2. The end of a poll moves 1 to 0 (idle)
//! or 2 to 1 (queue the same `Runnable` again). So the start of a poll needs no read-modify-write, and a wake
//! with its poll costs two. If a task was woken twice before its poll starts, the poll serves both wakes.
//!
//! A wake is a read-modify-write even if it changes nothing (2 stays 2): the poll that follows must see what
//! the waking thread wrote before.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};

use crate::runtime::shim::{AtomicUsize, fence};

const COMPLETE: usize = 1 << 0;
const JOIN_INTEREST: usize = 1 << 1;
const JOIN_WAKER: usize = 1 << 2;
const CANCELLED: usize = 1 << 3;
const WAKE: usize = 1 << 4;
const WAKES: usize = 3 << 4;
const REF: usize = 1 << 6;

/// Beyond this the count is near overflow: as with `Arc`, only leaking handles in a loop gets there.
const MAX_STATE: usize = isize::MAX as usize;

/// What the waking thread has to do.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The task was idle. A `Runnable` was created and must be queued.
    Schedule,
    /// The task is queued or running anyway, or complete.
    Nothing,
    /// As `Nothing`, and the last reference was given up: free the task.
    Free,
}

/// What to do with a `Runnable`.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Poll the future.
    Poll,
    /// Drop the future.
    Cancel,
}

/// The task's state after a poll that returned `Pending`.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Paused {
    /// Idle: the `Runnable` is gone, and the task must not be touched.
    Idle,
    /// Woken meanwhile: queue the `Runnable` again.
    Again,
    /// Cancelled meanwhile: drop the future.
    Cancel,
}

/// What remains to be done once the task is complete.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Completed {
    /// The `JoinHandle` was dropped: the completer drops the output.
    pub drop_output: bool,
    /// The completer takes the join waker and wakes it.
    pub wake_joiner: bool,
}

/// What the drop of a `JoinHandle` has to clean up.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Detached {
    /// The task completed before: the output is the handle's.
    pub drop_output: bool,
    /// The waker slot was taken back from the completer.
    pub drop_waker: bool,
}

/// Whether the join waker was published or taken back before completion.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JoinSlot {
    /// It was, in time.
    Ours,
    /// It was not: the task is complete.
    Complete,
}

/// A copy of the state word.
#[derive(Clone, Copy)]
pub(super) struct Snapshot(usize);

impl Snapshot {
    pub(super) fn is_complete(self) -> bool {
        self.0 & COMPLETE != 0
    }

    pub(super) fn has_join_waker(self) -> bool {
        self.0 & JOIN_WAKER != 0
    }
}

/// The state word.
#[derive(Debug)]
pub(super) struct TaskState(AtomicUsize);

impl TaskState {
    /// The state of a new task: scheduled, alive, with a `JoinHandle`.
    pub(super) fn new() -> TaskState {
        TaskState(AtomicUsize::new(2 * REF + WAKE + JOIN_INTEREST))
    }

    /// Reads the word, for the `JoinHandle`.
    pub(super) fn load(&self) -> Snapshot {
        // Ordering: pairs with the Release in `complete`; a thread that sees COMPLETE sees the output.
        Snapshot(self.0.load(Acquire))
    }

    /// Wakes through a borrowed waker.
    pub(super) fn wake_by_ref(&self) -> Woken {
        let mut now = self.0.load(Relaxed);
        loop {
            if now & COMPLETE != 0 {
                return Woken::Nothing;
            }
            let next = woken(now);
            // Ordering: Release passes what the waking thread wrote to the poll. Acquire pairs with `pause`: the
            // thread that gets the new `Runnable` polls or drops the future, so it must see what the last poll
            // wrote there.
            match self.0.compare_exchange_weak(now, next, AcqRel, Relaxed) {
                Ok(_) if now & WAKES == 0 => return Woken::Schedule,
                Ok(_) => return Woken::Nothing,
                Err(seen) => now = seen,
            }
        }
    }

    /// Wakes through an owned waker, and gives up its reference.
    pub(super) fn wake_by_value(&self) -> Woken {
        let mut now = self.0.load(Relaxed);
        loop {
            if now & COMPLETE != 0 {
                return if self.release() { Woken::Free } else { Woken::Nothing };
            }
            // Not complete: the task holds a reference to itself, so this is not the last.
            // Ordering: as in `wake_by_ref`.
            match self.0.compare_exchange_weak(now, woken(now) - REF, AcqRel, Relaxed) {
                Ok(_) if now & WAKES == 0 => return Woken::Schedule,
                Ok(_) => return Woken::Nothing,
                Err(seen) => now = seen,
            }
        }
    }

    /// Asks for the future to be dropped.
    pub(super) fn cancel(&self) -> Woken {
        let mut now = self.0.load(Relaxed);
        loop {
            if now & (COMPLETE | CANCELLED) != 0 {
                return Woken::Nothing;
            }
            // Ordering: as in `wake_by_ref`; and the drop of the future sees what came before.
            match self.0.compare_exchange_weak(now, woken(now) | CANCELLED, AcqRel, Relaxed) {
                Ok(_) if now & WAKES == 0 => return Woken::Schedule,
                Ok(_) => return Woken::Nothing,
                Err(seen) => now = seen,
            }
        }
    }

    /// Call this before a poll. The caller holds the `Runnable`.
    pub(super) fn start(&self) -> Start {
        // Relaxed: the wake that created this `Runnable` acquired what the last poll wrote. Passing the `Runnable`
        // to this thread, mostly through a queue, orders that before this load. A later wake shows in the count,
        // here or in `pause`.
        let mut now = self.0.load(Relaxed);
        debug_assert!(now & WAKES != 0 && now & COMPLETE == 0);
        if now & WAKES != WAKE {
            // Ordering: Acquire pairs with the Release of the wakes that came in between.
            now = self.0.fetch_sub(WAKE, Acquire);
        }
        if now & CANCELLED != 0 { Start::Cancel } else { Start::Poll }
    }

    /// Call this after a poll that returned `Pending`.
    pub(super) fn pause(&self) -> Paused {
        let mut now = self.0.load(Relaxed);
        loop {
            if now & CANCELLED != 0 {
                // Ordering: pairs with the Release in `cancel`: the drop of the future sees what came before.
                self.fence(Acquire);
                return Paused::Cancel;
            }
            // Ordering: Release passes the future to the next poll, through the wake before it. Acquire pairs with
            // the wakes that came during this poll: the next `start` may only load the word, which does not
            // acquire them.
            match self.0.compare_exchange_weak(now, now - WAKE, AcqRel, Relaxed) {
                Ok(_) if now & WAKES == WAKE => return Paused::Idle,
                Ok(_) => return Paused::Again,
                Err(seen) => now = seen,
            }
        }
    }

    /// Call this when the output is in place.
    pub(super) fn complete(&self) -> Completed {
        // Ordering: Release publishes the output to the `JoinHandle`; Acquire pairs with `publish_join_waker`.
        let before = self.0.fetch_or(COMPLETE, AcqRel);
        debug_assert!(before & COMPLETE == 0);
        Completed { drop_output: before & JOIN_INTEREST == 0, wake_joiner: before & JOIN_WAKER != 0 }
    }

    /// The slot holds a waker, which is the completer's from now on.
    pub(super) fn publish_join_waker(&self) -> JoinSlot {
        self.flip_join_waker()
    }

    /// Takes the slot back.
    pub(super) fn retract_join_waker(&self) -> JoinSlot {
        self.flip_join_waker()
    }

    fn flip_join_waker(&self) -> JoinSlot {
        let mut now = self.0.load(Relaxed);
        loop {
            if now & COMPLETE != 0 {
                // Ordering: pairs with `complete`: the caller goes on to take the output.
                self.fence(Acquire);
                return JoinSlot::Complete;
            }
            // Ordering: Release hands the slot's content to `complete`.
            match self.0.compare_exchange_weak(now, now ^ JOIN_WAKER, Release, Relaxed) {
                Ok(_) => return JoinSlot::Ours,
                Err(seen) => now = seen,
            }
        }
    }

    /// The `JoinHandle` is dropped. Its reference is released separately, after the clean-up.
    pub(super) fn detach(&self) -> Detached {
        let mut now = self.0.load(Relaxed);
        loop {
            let complete = now & COMPLETE != 0;
            let cleared = if complete { JOIN_INTEREST } else { JOIN_INTEREST | JOIN_WAKER };
            // Ordering: Acquire pairs with `complete` if it came first, as the output is ours then. If not, the slot is
            // ours, and `complete` does not look at it.
            match self.0.compare_exchange_weak(now, now & !cleared, Acquire, Relaxed) {
                Ok(_) => {
                    return Detached {
                        drop_output: complete,
                        drop_waker: !complete && now & JOIN_WAKER != 0,
                    };
                }
                Err(seen) => now = seen,
            }
        }
    }

    /// Adds a reference.
    pub(super) fn retain(&self) {
        // A new reference comes from an existing one, so there is nothing to order (as in `Arc`).
        let before = self.0.fetch_add(REF, Relaxed);
        if before > MAX_STATE {
            std::process::abort();
        }
    }

    /// Gives up a reference. Returns true if it was the last.
    pub(super) fn release(&self) -> bool {
        // Ordering: the Release of each `release` pairs with the Acquire fence of the last one. So the task is
        // freed after every other thread's last use.
        let last = self.0.fetch_sub(REF, Release) / REF == 1;
        if last {
            self.fence(Acquire);
        }
        last
    }

    /// A fence for what the last operation on the word has read.
    #[inline(always)]
    fn fence(&self, ordering: Ordering) {
        if cfg!(wakeloop_tsan) {
            // ThreadSanitizer does not know fences.
            self.0.load(ordering);
        } else {
            fence(ordering);
        }
    }
}

fn woken(state: usize) -> usize {
    if state & WAKES < 2 * WAKE { state + WAKE } else { state }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn wakes_during_the_poll_queue_the_task_once_more() {
        let state = TaskState::new();
        assert_eq!(state.start(), Start::Poll);
        for _ in 0..3 {
            assert_eq!(state.wake_by_ref(), Woken::Nothing);
        }
        assert_eq!(state.pause(), Paused::Again);
        assert_eq!(state.start(), Start::Poll);
        assert_eq!(state.pause(), Paused::Idle);
        assert_eq!(state.wake_by_ref(), Woken::Schedule);
    }

    #[test]
    fn the_poll_serves_all_wakes_before_it() {
        let state = TaskState::new();
        assert_eq!(state.wake_by_ref(), Woken::Nothing);
        assert_eq!(state.start(), Start::Poll);
        assert_eq!(state.pause(), Paused::Idle);
    }

    #[test]
    fn a_cancel_is_noticed_before_and_after_the_poll() {
        let state = TaskState::new();
        assert_eq!(state.cancel(), Woken::Nothing);
        assert_eq!(state.start(), Start::Cancel);
        let state = TaskState::new();
        assert_eq!(state.start(), Start::Poll);
        assert_eq!(state.cancel(), Woken::Nothing);
        assert_eq!(state.pause(), Paused::Cancel);
        let state = TaskState::new();
        assert_eq!(state.start(), Start::Poll);
        assert_eq!(state.pause(), Paused::Idle);
        assert_eq!(state.cancel(), Woken::Schedule);
        assert_eq!(state.cancel(), Woken::Nothing);
    }

    #[test]
    fn the_last_reference_frees() {
        let state = TaskState::new();
        state.retain();
        assert_eq!(state.start(), Start::Poll);
        assert_eq!(state.complete(), Completed { drop_output: false, wake_joiner: false });
        assert_eq!(state.wake_by_value(), Woken::Nothing);
        assert_eq!(state.detach(), Detached { drop_output: true, drop_waker: false });
        assert!(!state.release());
        assert!(state.release());
    }
}
