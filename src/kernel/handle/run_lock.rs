//! The lock of a ThreadSafeHandle, which asyncio has since 3.14.
//!
//! While the callback runs, `cancel()` and `cancelled()` block on every other thread. So after `cancel()` the callback
//! has either returned, or will never run.
//!
//! asyncio holds a reentrant lock during each run. Here the section of the loop guards a field with the number of the running thread. A
//! thread that has to wait creates a `threading.Event`, and the run sets this event at its end. Waiting for the event
//! can be interrupted by signals, as with asyncio's lock.

use std::cell::Cell;
use std::ffi::c_ulong;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::error::{raise, take_exception};
use crate::capi::imports::{imports, support};
use crate::capi::{Raised, Ref, Slot};

#[derive(Debug)]
pub(super) struct RunLock {
    /// The thread on which the callback is running.
    runner: Cell<Option<c_ulong>>,
    event: Slot,
}

fn this_thread() -> c_ulong {
    // SAFETY: the function has no preconditions.
    unsafe { ffi::PyThread_get_thread_ident() }
}

impl RunLock {
    pub(super) fn new() -> RunLock {
        RunLock { runner: Cell::new(None), event: Slot::empty() }
    }

    /// Blocks while the callback runs on another thread.
    pub(super) fn wait(&self) -> Result<(), Raised> {
        let me = this_thread();
        while self.runner.get().is_some_and(|runner| runner != me) {
            let Some(event) = self.event.get() else {
                let event = new_event()?;
                // Other threads may have run while the event was created, so everything is checked again.
                if self.event.is_empty() {
                    self.event.set(Some(event));
                }
                continue;
            };
            event.call_method(&imports().wait, &[])?;
        }
        Ok(())
    }

    /// Calls `run`, which runs the callback. Other threads wait until it has returned. `unraisable` gets an error of
    /// the event. If that error is fatal, it is raised instead of the result of `run`.
    pub(super) fn hold(
        &self,
        run: impl FnOnce() -> Result<(), Raised>,
        unraisable: impl FnOnce(Raised) -> Result<(), Raised>,
    ) -> Result<(), Raised> {
        let outer = self.runner.replace(Some(this_thread()));
        let result = run();
        self.runner.set(outer);
        match self.event.take() {
            Some(event) if outer.is_none() => open(&event, result, unraisable),
            event => {
                self.event.set(event);
                result
            }
        }
    }
}

fn new_event() -> Result<Ref, Raised> {
    // SAFETY: this thread is attached, as in every method.
    let py = unsafe { Python::assume_attached() };
    support(py, "new_gate").and_then(|new| new.call0()).map(Ref::from).map_err(Raised::from)
}

/// Sets the event, whatever the result of the run was. All waiting threads then continue.
#[cold]
fn open(
    event: &Ref,
    result: Result<(), Raised>,
    unraisable: impl FnOnce(Raised) -> Result<(), Raised>,
) -> Result<(), Raised> {
    let error = result.err().map(|Raised| take_exception());
    if let Err(raised) = event.call_method(&imports().set, &[]) {
        unraisable(raised)?;
    }
    match error {
        None => Ok(()),
        Some(exception) => Err(raise(exception)),
    }
}
