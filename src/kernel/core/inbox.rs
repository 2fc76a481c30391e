//! The inbox of a loop: threads without the GIL push messages here, and wake the loop if it is parked.
//!
//! Worker threads of the runtime hold no GIL, so they send completions as messages. Python callers of
//! `call_soon_threadsafe` hold the GIL. They push into the ready queue, which keeps one order with `call_soon`, and use
//! only [`Mailbox::wake`]. On a free-threaded build they send the call while the loop runs in another thread
//! ([`Inbox::runs_elsewhere`]), and the loop pushes it.
//!
//! The [`mailbox`](crate::mailbox) says why no wake-up is lost. Calls have a list of their own beside it, because the loop
//! takes them more often than messages: before it pushes a callback of its own, so that there is one order of both.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use pyo3::{Py, PyAny, Python};

use crate::capi::Fatal;
use crate::capi::section::FREE_THREADED;
use crate::capi::threads::ident;
use crate::mailbox::{Mailbox, SideList, Wake};
use crate::reactor::Waker;

/// Do other threads send a message, instead of pushing into the ready queue? With a GIL, the loop does not run while
/// another thread is in `call_soon_threadsafe`, so nobody waits for the ready queue. Debug builds do it on every
/// interpreter.
pub(crate) const THROUGH_INBOX: bool = FREE_THREADED || cfg!(debug_assertions);

/// A closure that another thread sends to the loop. It runs on the loop's thread, with the GIL held.
pub(crate) type Message = Box<dyn FnOnce(Python<'_>) -> Result<(), Fatal> + Send>;

/// The handle of a call that another thread sends to the loop.
pub(crate) type Call = Py<PyAny>;

/// The inbox, shared by a loop and all threads that may wake it. It may outlive the loop. A closed loop would never run
/// the messages, and they may hold references to it; and the waker's descriptor must not outlive the poller.
#[derive(Debug)]
pub(crate) struct Inbox {
    mailbox: Mailbox<Message, Waker>,
    /// The handles of `call_soon_threadsafe`, until the loop pushes them into the ready queue.
    calls: SideList<Call>,
    /// The length of the ready queue when the loop last took handles.
    backlog: AtomicUsize,
    /// The number of awaited jobs whose threads need the GIL; see `gil_fairness`.
    jobs: AtomicU32,
    /// The number of name lookups of this loop.
    lookups: AtomicU32,
    /// The tasks of this loop that wait for a queue or an event.
    waiters: AtomicU32,
    /// The thread in which `run_forever` is active, by its `threading.get_ident()`; 0 if it is not.
    runner: AtomicU64,
    /// The loop is in debug mode.
    debug: AtomicBool,
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
        Inbox {
            mailbox: Mailbox::new(waker),
            calls: SideList::new(),
            backlog: AtomicUsize::new(0),
            jobs: AtomicU32::new(0),
            lookups: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            runner: AtomicU64::new(0),
            debug: AtomicBool::new(false),
        }
    }

    /// Is `run_forever` active in another thread, and the loop not in debug mode?
    pub(crate) fn runs_elsewhere(&self) -> bool {
        // Relaxed: a caller that sees an old value pushes into the ready queue, in a section of the loop, which is right at
        // any time.
        let runner = self.runner.load(Ordering::Relaxed);
        runner != 0 && runner != ident() && !self.debug.load(Ordering::Relaxed)
    }

    /// `run_forever` begins in this thread, or has ended.
    pub(crate) fn set_running(&self, runs: bool) {
        self.runner.store(if runs { ident() } else { 0 }, Ordering::Relaxed);
    }

    pub(crate) fn set_debug(&self, on: bool) {
        self.debug.store(on, Ordering::Relaxed);
    }

    /// Sends a handle for the ready queue. Returns how many wait to be taken. If the loop is closed, the handle is
    /// dropped, and the result is `None`.
    pub(crate) fn send_call(&self, call: Call) -> Option<usize> {
        let waiting = self.calls.push(call)?;
        self.mailbox.send(Box::new(|_| Ok(())));
        // Relaxed: the number is a hint.
        Some(waiting + self.backlog.load(Ordering::Relaxed))
    }

    /// How many handles of [`Inbox::send_call`] wait, and callbacks that the loop has told of.
    pub(crate) fn waiting_calls(&self) -> usize {
        self.calls.len() + self.backlog.load(Ordering::Relaxed)
    }

    /// The loop has so many callbacks in its ready queue.
    pub(crate) fn set_backlog(&self, callbacks: usize) {
        self.backlog.store(callbacks, Ordering::Relaxed);
    }

    /// Takes the handles of [`Inbox::send_call`], in order.
    #[inline(always)]
    pub(crate) fn take_calls(&self) -> Option<Vec<Call>> {
        self.calls.take()
    }

    /// As [`Mailbox::is_unlocked`], of the calls too.
    pub(crate) fn is_unlocked(&self) -> bool {
        self.calls.is_unlocked() && self.mailbox.is_unlocked()
    }

    /// As [`Mailbox::reset_after_fork`], of the calls too.
    pub(crate) fn reset_after_fork(&self, waker: Waker) {
        drop(self.take_calls());
        self.mailbox.reset_after_fork(waker);
    }

    /// As [`Mailbox::close`], of the calls too.
    pub(crate) fn close(&self) {
        self.calls.close();
        self.mailbox.close();
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

    /// Counts a task of this loop that waits for a queue or an event.
    pub(crate) fn add_waiter(&self) {
        // Relaxed, as for `jobs`: the loop's own thread adds, and reads the number between two turns.
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_waiter(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::Relaxed)
    }
}
