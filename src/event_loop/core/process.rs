//! Records which process a loop belongs to.
//!
//! After a fork, parent and child share one epoll set and one wake-up descriptor, and each would take events away from
//! the other. So the child cannot use its parent's loop unchanged. `fork.rs` says when the child may take the loop
//! over.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The error text for a forked child that uses its parent's loop.
pub(crate) const PARENTS_LOOP: &str =
    "this event loop belongs to the parent process; a forked child has to make its own";

/// The fork count: the number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts a fork. Called in the forked child, before any other function of this crate.
pub(crate) fn forked() {
    // Relaxed: the child has one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The fork count of this process. An object that has recorded another count was made by a parent process.
pub(crate) fn forks() -> u32 {
    // Relaxed: changes only in a child that has one thread.
    FORKS.load(Ordering::Relaxed)
}

#[derive(Debug)]
pub(crate) struct OwnerProcess {
    /// The fork count of the process that has the loop.
    forks: Cell<u32>,
    /// A forked child cannot take over the loop: it has left a run of the loop in the middle, or other code waits for
    /// the loop's descriptor.
    in_use: Cell<bool>,
}

impl OwnerProcess {
    pub(crate) fn new() -> OwnerProcess {
        OwnerProcess { forks: Cell::new(forks()), in_use: Cell::new(false) }
    }

    /// Is this a forked child with its parent's loop?
    pub(crate) fn is_parent(&self) -> bool {
        self.forks.get() != forks()
    }

    /// This process has the loop from now on.
    pub(crate) fn adopt(&self) {
        self.forks.set(forks());
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.get()
    }

    /// From now on no child can take over the loop.
    pub(crate) fn set_in_use(&self) {
        self.in_use.set(true);
    }
}
