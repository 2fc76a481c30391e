//! Records which process a loop belongs to.
//!
//! After a fork, parent and child share one epoll set and one wake-up descriptor, and each would take events away from
//! the other. So the child cannot use its parent's loop unchanged. `fork.rs` says when the child may take the loop
//! over.

use std::cell::Cell;

use crate::fork::Owner;

/// The error text for a forked child that uses its parent's loop.
pub(crate) const PARENTS_LOOP: &str =
    "this event loop belongs to the parent process; a forked child has to make its own";

#[derive(Debug)]
pub(crate) struct OwnerProcess {
    owner: Owner,
    /// A forked child cannot take over the loop: it has left a run of the loop in the middle, or other code waits for
    /// the loop's descriptor.
    in_use: Cell<bool>,
}

impl OwnerProcess {
    pub(crate) fn new() -> OwnerProcess {
        OwnerProcess { owner: Owner::this_process(), in_use: Cell::new(false) }
    }

    /// Is this a forked child with its parent's loop?
    pub(crate) fn is_parent(&self) -> bool {
        !self.owner.is_this_process()
    }

    /// This process has the loop from now on.
    pub(crate) fn adopt(&self) {
        self.owner.adopt();
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.get()
    }

    /// From now on no child can take over the loop.
    pub(crate) fn set_in_use(&self) {
        self.in_use.set(true);
    }
}
