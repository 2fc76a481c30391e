//! Which process a loop belongs to.
//!
//! After a fork, parent and child share one epoll set and one wake-up descriptor, and each takes events away from the
//! other. So a child cannot use its parent's loop as it is. `fork.rs` says when the loop becomes the child's own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The error text for a forked child that uses its parent's loop.
pub(crate) const PARENTS_LOOP: &str =
    "this event loop belongs to the parent process; a forked child has to make its own";

/// How many forks lie between this process and the first.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in a forked child, before anything else of ours runs there.
pub(crate) fn forked() {
    // Relaxed: the child has one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between this process and the first. What was made under another number belongs to a parent.
pub(crate) fn forks() -> u32 {
    // Relaxed: changes only in a child that has one thread.
    FORKS.load(Ordering::Relaxed)
}

/// What a forked child gets that inherits the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inherited {
    /// Callbacks and timers.
    AtRest,
    /// Nothing: the loop was in the middle of a run, which the child has left, or other code waits for its descriptor.
    InUse,
}

#[derive(Debug)]
pub(crate) struct OwnerProcess {
    /// The process, as [`forks`] counts them.
    forks: Cell<u32>,
    inherited: Cell<Inherited>,
}

impl OwnerProcess {
    pub(crate) fn new() -> OwnerProcess {
        OwnerProcess { forks: Cell::new(forks()), inherited: Cell::new(Inherited::AtRest) }
    }

    /// Is this a forked child with its parent's loop?
    pub(crate) fn is_parent(&self) -> bool {
        self.forks.get() != forks()
    }

    /// The loop is this process's own from now on.
    pub(crate) fn adopt(&self) {
        self.forks.set(forks());
    }

    pub(crate) fn inherited(&self) -> Inherited {
        self.inherited.get()
    }

    /// No child can have the loop any more.
    pub(crate) fn set_in_use(&self) {
        self.inherited.set(Inherited::InUse);
    }
}
