//! What a forked child can do with its parent's loop.
//!
//! A loop that was at rest, and watched no descriptor, is no more than callbacks and timers, of which the child has
//! copies. It becomes the child's own, with a poller of its own: that is the loop that a program makes when it is loaded,
//! before it becomes a daemon or forks its workers. Any other is refused with a `RuntimeError`.
//!
//! The GIL is held; a forked child has one thread until it starts more.

use super::core::Core;
use super::core::io::new_poller;
use super::core::process::{Inherited, PARENTS_LOOP};
use crate::capi::error::raise_io;
use crate::capi::{Exception, Raised};

impl Core {
    /// Raises unless the loop is this process's own, or becomes that. For calls on a loop that may be running.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(self.thread_id.is_empty()) } else { Ok(()) }
    }

    /// The same for `run_forever`, which has marked the loop as running already.
    pub(crate) fn check_process_to_run(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(true) } else { Ok(()) }
    }

    /// The same for a loop that Python code steps: it may have been forked in the middle of a turn.
    pub(crate) fn check_process_to_step(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(false) } else { Ok(()) }
    }

    /// The parent's loop becomes this process's, if it was at rest there.
    #[cold]
    fn inherit(&self, at_rest: bool) -> Result<(), Raised> {
        let free = at_rest
            && self.process.inherited() == Inherited::AtRest
            && !self.is_running()
            && !self.is_polling()
            && self.fds.descriptors().is_empty();
        // The parent's other threads may have held the inbox's locks at the fork. The child would wait for ever.
        if !free || !self.inbox.is_free() {
            return Err(Exception::RuntimeError.raise(PARENTS_LOOP));
        }
        let (poller, waker) = new_poller().map_err(|error| raise_io(&error))?;
        self.io.set_poller(Some(poller));
        self.inbox.begin_anew(waker);
        self.process.adopt();
        Ok(())
    }
}
