//! The rule of asyncio's thread-safe handles since 3.14: while the callback runs, `cancel()` and `cancelled()` block in
//! every other thread. After a `cancel()` the callback has either run to its end or never will.
//!
//! asyncio holds a reentrant lock through every run. Here the GIL guards the number of the running thread. A thread that
//! has to wait puts a gate (`threading.Event`) beside it, and the run opens the gate when it ends. Waiting at the gate
//! gives way to signals, as asyncio's lock does.

use std::cell::Cell;
use std::ffi::c_ulong;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::error::{raise, take_exception};
use crate::capi::imports::{imports, support};
use crate::capi::{Raised, Ref, Slot};

#[derive(Debug)]
pub(super) struct RunLock {
    /// The thread in which the callback runs at this moment.
    runner: Cell<Option<c_ulong>>,
    gate: Slot,
}

fn this_thread() -> c_ulong {
    // SAFETY: no conditions.
    unsafe { ffi::PyThread_get_thread_ident() }
}

impl RunLock {
    pub(super) fn new() -> RunLock {
        RunLock { runner: Cell::new(None), gate: Slot::empty() }
    }

    /// Blocks while the callback runs in another thread.
    pub(super) fn wait(&self) -> Result<(), Raised> {
        let me = this_thread();
        while self.runner.get().is_some_and(|runner| runner != me) {
            let Some(gate) = self.gate.get() else {
                let gate = new_gate()?;
                // Making it may have let other threads run: look again at everything.
                if self.gate.is_empty() {
                    self.gate.set(Some(gate));
                }
                continue;
            };
            gate.call_method(&imports().wait, &[])?;
        }
        Ok(())
    }

    /// Runs the callback by `run`; other threads wait until it has returned. `unraisable` takes an error of the gate, and
    /// may leave a fatal one raised, which takes the place of the result.
    pub(super) fn hold(
        &self,
        run: impl FnOnce() -> Result<(), Raised>,
        unraisable: impl FnOnce(Raised) -> Result<(), Raised>,
    ) -> Result<(), Raised> {
        let outer = self.runner.replace(Some(this_thread()));
        let result = run();
        self.runner.set(outer);
        match self.gate.take() {
            Some(gate) if outer.is_none() => open(&gate, result, unraisable),
            gate => {
                self.gate.set(gate);
                result
            }
        }
    }
}

fn new_gate() -> Result<Ref, Raised> {
    // SAFETY: GIL held, as in every method.
    let py = unsafe { Python::assume_attached() };
    support(py, "new_gate").and_then(|new| new.call0()).map(Ref::from).map_err(Raised::from)
}

/// Lets all threads go on that wait at the gate, whatever the run's result was.
#[cold]
fn open(
    gate: &Ref,
    result: Result<(), Raised>,
    unraisable: impl FnOnce(Raised) -> Result<(), Raised>,
) -> Result<(), Raised> {
    let error = result.err().map(|Raised| take_exception());
    if let Err(raised) = gate.call_method(&imports().set, &[]) {
        unraisable(raised)?;
    }
    match error {
        None => Ok(()),
        Some(exception) => Err(raise(exception)),
    }
}
