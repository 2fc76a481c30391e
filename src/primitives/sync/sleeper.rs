//! Who waits for a queue or an event: a task of a loop, or a thread.
//!
//! A sleeper is used by attached threads only, and is dropped without a lock: dropping the last reference to a future may
//! run Python code.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::bridge::loop_handle::{Home, report, running_loop};
use crate::bridge::waiter::new_future_of;
use crate::capi::call::call0;
use crate::capi::collector::Visitor;
use crate::capi::error::{Outcome, undisturbed, unless_raised};
use crate::capi::future::complete;
use crate::capi::imports::imports;
use crate::capi::threads::Parker;
use crate::capi::{Fatal, Raised, Ref};

#[derive(Debug)]
pub(super) enum Sleeper {
    Task(Task),
    Thread(Arc<Parker>),
}

/// A task that waits for a future of its own loop.
#[derive(Debug)]
pub(super) struct Task {
    event_loop: Home,
    /// The address of the loop's object. The future keeps the loop alive, so no other loop has the address.
    address: usize,
    future: Ref,
}

impl Sleeper {
    /// The task that runs, and the future for it to wait for.
    ///
    /// # Errors
    /// Raises RuntimeError if no loop runs on this thread.
    pub(super) fn task(py: Python<'_>) -> Result<(Sleeper, Ref), Raised> {
        let running = running_loop()?;
        let event_loop = Home::of(&running.bind(py))?;
        let future = new_future_of(&running)?;
        let address = running.as_ptr() as usize;
        Ok((Sleeper::Task(Task { event_loop, address, future: future.clone_ref() }), future))
    }

    /// Is it a task whose loop is closed? Nothing wakes it any more.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Sleeper::Task(task) if task.event_loop.is_closed())
    }

    /// Is it a thread, or a task of another loop than the one at this address?
    pub(super) fn is_beside(&self, running: usize) -> bool {
        !matches!(self, Sleeper::Task(task) if task.address == running)
    }

    /// Shows the collector what the sleeper refers to.
    pub(super) fn visit(&self, visitor: &mut Visitor) {
        if let Sleeper::Task(task) = self {
            visitor.reference(&task.future);
        }
    }

    /// Wakes it from any attached thread. If its loop is closed before it hears of this, `if_unheard` is called.
    fn send<F: FnOnce(Python<'_>) + Send + 'static>(self, py: Python<'_>, if_unheard: F) {
        match self {
            Sleeper::Thread(parker) => parker.unpark(),
            Sleeper::Task(Task { event_loop, future, .. }) => {
                let mut message =
                    Message { future: Some(future.bind(py).unbind()), if_unheard: Some(if_unheard) };
                event_loop.send(Box::new(move |py| message.deliver(py)));
            }
        }
    }

    /// As [`Sleeper::send`]. If its loop is `running`, the loop of this thread, this completes the future at once, which
    /// saves the message and keeps asyncio's order.
    fn wake<F: FnOnce(Python<'_>) + Send + 'static>(
        self,
        py: Python<'_>,
        running: usize,
        if_unheard: F,
    ) -> Result<(), Fatal> {
        match self {
            Sleeper::Task(Task { address, future, .. }) if address == running => {
                complete(&future, &Ref::none()).or_else(report)
            }
            other => {
                other.send(py, if_unheard);
                Ok(())
            }
        }
    }
}

/// Wakes one sleeper. `if_unheard` is called if its loop is closed before it hears of this.
pub(super) fn wake<F: FnOnce(Python<'_>) + Send + 'static>(
    py: Python<'_>,
    sleeper: Sleeper,
    if_unheard: F,
) -> Result<(), Raised> {
    Ok(sleeper.wake(py, running_address(), if_unheard)?)
}

/// As [`wake`], where no error can be raised: at the end of a wait, which may be in a destructor.
pub(super) fn wake_quietly<F: FnOnce(Python<'_>) + Send + 'static>(
    py: Python<'_>,
    sleeper: Sleeper,
    if_unheard: F,
) {
    undisturbed(|| {
        if wake(py, sleeper, if_unheard).is_err() {
            Ref::none().write_unraisable();
        }
    });
}

/// Wakes sleepers that all get the same, so that none has to pass anything on.
pub(super) fn wake_all(py: Python<'_>, sleepers: impl Iterator<Item = Sleeper>) -> Result<(), Raised> {
    let mut outcome = Outcome::default();
    let mut running = None;
    for sleeper in sleepers {
        let running = *running.get_or_insert_with(running_address);
        outcome.note(sleeper.wake(py, running, |_| {}));
    }
    Ok(outcome.finish()?)
}

/// The address of the loop that runs on this thread. `None` stands for no loop, and is no loop's address.
pub(super) fn running_address() -> usize {
    unless_raised(call0(&imports()._get_running_loop)).map_or(0, |running| running.as_ptr() as usize)
}

/// A wake-up on its way to a loop.
struct Message<F: FnOnce(Python<'_>)> {
    /// Until it is delivered.
    future: Option<Py<PyAny>>,
    if_unheard: Option<F>,
}

impl<F: FnOnce(Python<'_>)> Message<F> {
    fn deliver(&mut self, py: Python<'_>) -> Result<(), Fatal> {
        let Some(future) = self.future.take() else { return Ok(()) };
        complete(&Ref::from(future.into_bound(py)), &Ref::none()).or_else(report)
    }
}

impl<F: FnOnce(Python<'_>)> Drop for Message<F> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else {
            // It was delivered. What `if_unheard` holds is dropped here, attached to the interpreter.
            return;
        };
        let mut unheard = Some((future, self.if_unheard.take()));
        // The thread may be attached without pyo3's knowledge, or not at all.
        let attached = Python::try_attach(|py| {
            undisturbed(|| {
                if let Some((future, if_unheard)) = unheard.take() {
                    drop(future);
                    if let Some(if_unheard) = if_unheard {
                        if_unheard(py);
                    }
                }
            });
        });
        if attached.is_none() {
            // The interpreter is gone, and the objects with it.
            std::mem::forget(unheard);
        }
    }
}
