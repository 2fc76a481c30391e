//! The inbox of a loop: threads without the GIL push messages here, and wake the loop if it is parked.
//!
//! Worker threads of the runtime hold no GIL, so they send completions as messages. Python callers of
//! `call_soon_threadsafe` hold the GIL. They push into the ready queue, which keeps one order with `call_soon`, and use
//! only [`Mailbox::wake`]. The [`mailbox`](crate::mailbox) says why no wake-up is lost.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::Python;

use crate::capi::Fatal;
use crate::mailbox::{Mailbox, Wake};
use crate::reactor::Waker;

/// A closure that another thread sends to the loop. It runs on the loop's thread, with the GIL held.
pub(crate) type Message = Box<dyn FnOnce(Python<'_>) -> Result<(), Fatal> + Send>;

/// The inbox, shared by a loop and all threads that may wake it. It may outlive the loop. A closed loop would never run
/// the messages, and they may hold references to it; and the waker's descriptor must not outlive the poller.
#[derive(Debug)]
pub(crate) struct Inbox {
    mailbox: Mailbox<Message, Waker>,
    /// The number of awaited jobs whose threads need the GIL; see `gil_fairness`.
    jobs: AtomicU32,
    /// The number of name lookups of this loop.
    lookups: AtomicU32,
}

impl Wake for Waker {
    fn wake(&self) {
        // It fails only if the poller is closed, and then no thread waits in it.
        let _ = Waker::wake(self);
    }
}

impl Deref for Inbox {
    type Target = Mailbox<Message, Waker>;

    #[inline(always)]
    fn deref(&self) -> &Mailbox<Message, Waker> {
        &self.mailbox
    }
}

/// A name lookup of a loop, until its result is delivered.
pub(crate) struct Lookup(Arc<Inbox>);

impl Lookup {
    pub(crate) fn of(inbox: &Arc<Inbox>) -> Lookup {
        // Relaxed, as for `jobs`.
        inbox.lookups.fetch_add(1, Ordering::Relaxed);
        Lookup(inbox.clone())
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        self.0.lookups.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Inbox {
        Inbox { mailbox: Mailbox::new(waker), jobs: AtomicU32::new(0), lookups: AtomicU32::new(0) }
    }

    /// Counts a job whose thread needs the GIL.
    pub(crate) fn await_job(&self) {
        // Relaxed in all three methods: the number is a hint, and publishes no other memory.
        self.jobs.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the count of a job that is done, or no longer awaited.
    pub(crate) fn end_job(&self) {
        self.jobs.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn awaits_jobs(&self) -> bool {
        self.jobs() > 0
    }

    pub(crate) fn jobs(&self) -> u32 {
        self.jobs.load(Ordering::Relaxed)
    }

    pub(crate) fn lookups(&self) -> u32 {
        self.lookups.load(Ordering::Relaxed)
    }
}
