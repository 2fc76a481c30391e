//! Decides whether a forked child may use its parent's loop.
//!
//! A loop that was idle and watched no descriptor has only callbacks and timers, and the child has copies of these. So
//! the child takes the loop over, with a new poller. This helps programs that create a loop at import, and then become
//! a daemon or fork their workers. In all other cases the child gets a `RuntimeError`.
//!
//! The caller is in a section of the loop, and a forked child has only one thread until it starts others.

use super::core::Core;
use super::core::io::new_poller;
use super::core::process::PARENTS_LOOP;
use crate::capi::error::raise_os_error;
use crate::capi::{Exception, Raised};

impl Core {
    /// Raises if the loop belongs to a parent process, and cannot be taken over. For calls on a loop that may be
    /// running.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(self.thread_id.is_empty()) } else { Ok(()) }
    }

    /// The same check for `run_forever`, which has already set `_thread_id`.
    pub(crate) fn check_process_to_run(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(true) } else { Ok(()) }
    }

    /// The same check for a loop that Python code steps. It is never taken over, because the fork may have happened in
    /// the middle of a turn.
    pub(crate) fn check_process_to_step(&self) -> Result<(), Raised> {
        if self.is_parents() { self.inherit(false) } else { Ok(()) }
    }

    /// Takes over the parent's loop if it was idle there, or raises.
    #[cold]
    fn inherit(&self, idle: bool) -> Result<(), Raised> {
        let can_inherit = idle
            && !self.process.is_in_use()
            && !self.is_running()
            && !self.is_polling()
            && self.fds.descriptors().is_empty();
        // Another thread of the parent may have held a lock of the inbox at the fork. The child would wait for it for
        // ever.
        if !can_inherit || !self.inbox.is_unlocked() {
            return Err(Exception::RuntimeError.raise(PARENTS_LOOP));
        }
        let (poller, waker) = new_poller().map_err(|error| raise_os_error(&error))?;
        self.io.set_poller(Some(poller));
        self.inbox.reset_after_fork(waker);
        self.process.adopt();
        self.probe.registered.entry().adopt();
        Ok(())
    }
}
