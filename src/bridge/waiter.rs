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
use crate::event_loop::core::Core;
use crate::event_loop::futures::new_future;
use crate::poison::unpoisoned;

/// A future of this loop.
pub(crate) fn new_future_of(event_loop: &Ref) -> Result<Ref, Raised> {
    match event_loop.with_native(|core: This<'_, Core>| new_future(&core)) {
        Some(made) => made,
        None => event_loop.call_method(&imports().create_future, &[]),
    }
}

/// Wakes one task, at most once, from any thread.
#[derive(Debug)]
pub(crate) struct Waiter {
    event_loop: LoopHandle,
    future: Py<PyAny>,
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
        Waiter { event_loop, future }
    }

    /// Wakes the task. Needs no GIL.
    pub(crate) fn wake(self) {
        let Waiter { event_loop, future } = self;
        event_loop.send(Box::new(move |py| {
            complete(&Ref::from(future.into_bound(py)), &Ref::none()).or_else(report)
        }));
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
}

impl Wake for WakeOnce {
    fn wake(self: Arc<Self>) {
        if let Some(waiter) = self.take() {
            waiter.wake();
        }
    }
}
