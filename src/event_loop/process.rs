//! Which process a loop belongs to.
//!
//! After a fork, parent and child have one epoll set and one wake-up descriptor between them: what either is told, the
//! other misses. So a child has no use for its parent's loop as that is. But one that was at rest, and had nothing to
//! watch, is no more than callbacks and timers, of which the child has copies: it becomes the child's own, with a poller of
//! its own. That is the loop that a program makes when it is loaded, before it becomes a daemon or forks its workers. Any
//! other is refused.
//!
//! The GIL is held; a forked child has one thread until it starts more.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::ffi;

use super::core::{Core, Inherited, new_poller};
use crate::capi::Raised;
use crate::capi::error::{raise_io, raise_message};

/// What a forked child is told that uses its parent's loop.
pub(crate) const PARENTS_LOOP: &str =
    "this event loop belongs to the parent process; a forked child has to make its own";

/// Bumped in every forked child: a loop that remembers another value belongs to the parent.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in a forked child, before anything else of ours runs there.
pub(crate) fn forked() {
    // Relaxed: the child has one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between this process and the first: what is of another number belongs to a parent.
pub(crate) fn forks() -> u32 {
    // Relaxed: changes only in a child that has one thread.
    FORKS.load(Ordering::Relaxed)
}

impl Core {
    /// Is this a forked child with its parent's loop?
    pub(crate) fn is_parents(&self) -> bool {
        self.forks.get() != forks()
    }

    /// Raises unless the loop is this process's own, or becomes that. For what is done to a loop, which may be running.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(self.thread_id.is_empty()) } else { Ok(()) }
    }

    /// The same for who is about to run it natively: it says so already.
    pub(crate) fn check_process_to_run(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(true) } else { Ok(()) }
    }

    /// The same for who turns it by hand, in the middle of which it may have been forked.
    pub(crate) fn check_process_to_turn(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(false) } else { Ok(()) }
    }

    /// The parent's loop becomes this process's, if it was at rest there.
    #[cold]
    fn inherit(&self, at_rest: bool) -> Result<(), Raised> {
        let free = at_rest
            && self.inherited.get() == Inherited::AtRest
            && !self.running.get()
            && !self.polling.get()
            && self.fds.descriptors().is_empty();
        // The parent's other threads may have held the inbox when it was copied: nobody will give it back.
        if !free || !self.inbox.is_free() {
            // SAFETY: reading a static of the interpreter.
            raise_message(unsafe { ffi::PyExc_RuntimeError }, PARENTS_LOOP);
            return Err(Raised);
        }
        let (poller, waker) = match new_poller() {
            Ok(made) => made,
            Err(error) => return Err(raise_io(&error)),
        };
        self.replace_poller(poller);
        self.inbox.begin_anew(waker);
        self.forks.set(forks());
        Ok(())
    }
}
