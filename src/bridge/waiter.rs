//! Wakes a Python task from any thread.
//!
//! The task waits for an asyncio future of its own loop. Waking it sends a message to the loop, which sets the future's
//! result to `None`. The outcome of the operation stays in the operation until the task takes it.

use std::sync::{Arc, Mutex};
use std::task::Wake;

use pyo3::prelude::*;

use super::loop_handle::{LoopHandle, report, running_loop};
use crate::capi::future::complete;
use crate::capi::imports::imports;
use crate::capi::{Raised, Ref, This};
use crate::fork::Owned;
use crate::kernel::core::Core;
use crate::kernel::futures::new_future;
use crate::poison::unpoisoned;

/// A future of this loop.
pub(crate) fn new_future_of(event_loop: &Ref) -> Result<Ref, Raised> {
    match event_loop.with_native(|core: This<'_, Core>| new_future(&core)) {
        Some(made) => made,
        None => event_loop.call_method(&imports().create_future, &[]),
    }
}

/// Wakes one task, at most once, from any thread.
pub(crate) struct Waiter {
    event_loop: LoopHandle,
    future: Py<PyAny>,
    if_unheard: Option<IfUnheard>,
}

impl Waiter {
    /// A waiter of the running loop, and the future for the task to wait for.
    ///
    /// # Errors
    /// Raises RuntimeError if no loop runs on this thread.
    pub(crate) fn new(py: Python<'_>) -> Result<(Waiter, Ref), Raised> {
        let running = running_loop()?;
        let event_loop = LoopHandle::of(&running.bind(py))?;
        let future = new_future_of(&running)?;
        Ok((Waiter::of(event_loop, future.clone_ref()), future))
    }

    /// A waiter of this loop.
    pub(crate) fn of(event_loop: LoopHandle, future: Ref) -> Waiter {
        let future = future.bind(future.py()).unbind();
        Waiter { event_loop, future, if_unheard: None }
    }

    /// The waiter with a function that is called if its loop is closed before it hears of the wake-up: on any thread,
    /// with or without the GIL.
    pub(crate) fn or_else(self, if_unheard: impl FnOnce() + Send + 'static) -> Waiter {
        Waiter { if_unheard: Some(Box::new(if_unheard)), ..self }
    }

    /// Wakes the task. Needs no GIL.
    pub(crate) fn wake(self) {
        let Waiter { event_loop, future, if_unheard } = self;
        let mut unheard = Unheard(if_unheard.map(Owned::new));
        event_loop.send(Box::new(move |py| {
            drop(unheard.0.take());
            complete(&Ref::from(future.into_bound(py)), &Ref::none()).or_else(report)
        }));
    }
}

type IfUnheard = Box<dyn FnOnce() + Send>;

/// Calls the function when it is dropped, unless that was taken. In a forked child it does nothing: a message of the
/// parent may be dropped there, and a lock that the function needs may be held for ever.
struct Unheard(Option<Owned<IfUnheard>>);

impl Drop for Unheard {
    fn drop(&mut self) {
        if let Some(if_unheard) = self.0.take().and_then(Owned::into_inner) {
            if_unheard();
        }
    }
}

/// A waker for Rust futures that wakes a [`Waiter`] the first time and then does nothing.
pub(crate) struct WakeOnce(Mutex<Option<Waiter>>);

impl WakeOnce {
    pub(crate) fn new(waiter: Waiter) -> Arc<WakeOnce> {
        Arc::new(WakeOnce(Mutex::new(Some(waiter))))
    }

    /// The waiter, if it was not woken yet.
    pub(crate) fn take(&self) -> Option<Waiter> {
        // The lock may be poisoned: taking the waiter cannot panic half-way.
        unpoisoned(self.0.lock()).take()
    }

    /// Is the waiter's loop closed? Then nothing wakes it any more.
    pub(crate) fn is_gone(&self) -> bool {
        unpoisoned(self.0.lock()).as_ref().is_some_and(|waiter| waiter.event_loop.is_closed())
    }
}

impl Wake for WakeOnce {
    fn wake(self: Arc<Self>) {
        if let Some(waiter) = self.take() {
            waiter.wake();
        }
    }
}
