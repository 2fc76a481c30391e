//! A task that waits on a loop, as the runtime sees it: something to wake.
//!
//! The task waits for an asyncio future of its own loop. Waking sends a message to the loop, which gives the future
//! `None` as its result; what there is to hand over stays with the operation, until the task comes for it.

use pyo3::prelude::*;

use super::port::{Port, report};
use crate::capi::call::{call0, method};
use crate::capi::error::{fetch, restore};
use crate::capi::imports::imports;
use crate::capi::{Raised, Ref};
use crate::event_loop::futures::new_future;

/// `Send`: taken along by whoever will wake. Dropped unused, it wakes nobody.
#[derive(Debug)]
pub(crate) struct Waiter {
    port: Port,
    future: Py<PyAny>,
}

impl Waiter {
    /// A waiter of the running loop, and the future for the task to wait for.
    ///
    /// # Errors
    /// Raises RuntimeError if no loop runs on this thread.
    pub(crate) fn new(py: Python<'_>) -> Result<(Waiter, Ref), Raised> {
        let event_loop = running_loop()?.bind(py);
        let port = Port::of(&event_loop).map_err(|error| restore(py, error))?;
        let future = match port {
            Port::Own(_) => new_future(event_loop.as_ptr())?,
            Port::Foreign(_) => method(&Ref::from(event_loop), imports().create_future.as_ptr(), &[])?,
        };
        Ok((Waiter::of(port, future.clone_ref()), future))
    }

    /// A waiter of the loop behind `port`.
    pub(crate) fn of(port: Port, future: Ref) -> Waiter {
        // SAFETY: who has a `Ref` holds the GIL.
        let py = unsafe { Python::assume_attached() };
        Waiter { port, future: future.bind(py).unbind() }
    }

    /// Wakes the task. Needs no GIL.
    pub(crate) fn wake(self) {
        let Waiter { port, future } = self;
        port.send(Box::new(move || {
            // SAFETY: messages are run by a loop's thread with the GIL held.
            let py = unsafe { Python::assume_attached() };
            set(py, &Ref::from(future.into_bound(py))).or_else(|Raised| report(py, fetch(py)))
        }));
    }
}

fn set(py: Python<'_>, future: &Ref) -> Result<(), Raised> {
    let names = imports();
    let done = method(future, names.done.as_ptr(), &[])?;
    // A future that was cancelled meanwhile is done.
    if done.bind(py).is_truthy().map_err(|error| restore(py, error))? {
        return Ok(());
    }
    method(future, names.set_result.as_ptr(), &[Ref::none().as_ptr()]).map(drop)
}

/// The loop that runs on this thread.
///
/// # Errors
/// Raises RuntimeError if there is none.
pub(crate) fn running_loop() -> Result<Ref, Raised> {
    call0(&imports().get_running_loop)
}
