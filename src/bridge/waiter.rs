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
        // One of our own loops runs the task in the turn in which it hears of this, any other loop in the next one.
        let is_foreign = matches!(event_loop, LoopHandle::Foreign(_));
        let mut unheard = Unheard(if_unheard.map(Owned::new));
        event_loop.send(Box::new(move |py| {
            let (future, unheard) = (Ref::from(future.into_bound(py)), unheard.0.take());
            let woken = complete(&future, &Ref::none()).or_else(report);
            if let Some(unheard) = unheard.filter(|_| is_foreign && woken.is_ok()) {
                let event_loop = future.call_method(&imports().get_loop, &[]);
                return event_loop.and_then(|it| Unheard(Some(unheard)).call_soon(&it)).or_else(report);
            }
            woken
        }));
    }
}

type IfUnheard = Box<dyn FnOnce() + Send>;

/// Calls `if_closed` if the loop, which runs on this thread, is closed before it has run what it has scheduled so far.
pub(crate) fn when_closed(event_loop: &Ref, if_closed: impl FnOnce() + Send + 'static) -> Result<(), Raised> {
    Unheard(Some(Owned::new(Box::new(if_closed)))).call_soon(event_loop)
}

/// Calls the function when it is dropped, unless that was taken. In a forked child it does nothing: a message of the
/// parent may be dropped there, and a lock that the function needs may be held for ever.
struct Unheard(Option<Owned<IfUnheard>>);

impl Unheard {
    /// Passes it to the loop as a callback, which a closed loop drops.
    fn call_soon(self, event_loop: &Ref) -> Result<(), Raised> {
        let heard = Ref::from(Bound::new(event_loop.py(), Heard(Mutex::new(self)))?.into_any());
        event_loop.call_method(&imports().call_soon, &[heard.borrow()]).map(drop)
    }
}

/// The callback of a loop that goes on.
#[pyclass(module = "wakeloop._core", frozen)]
pub(crate) struct Heard(Mutex<Unheard>);

#[pymethods]
impl Heard {
    fn __call__(&self) {
        // The lock may be poisoned: taking the function cannot panic half-way.
        let heard = unpoisoned(self.0.lock()).0.take();
        drop(heard);
    }
}

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
