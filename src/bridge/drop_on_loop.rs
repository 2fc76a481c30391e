//! Drops values that hold Python references on the thread of their loop.
//!
//! A detached thread cannot drop a reference to a Python object. pyo3 defers such a drop until Python calls one of
//! pyo3's functions the next time. A loop that runs for hours calls functions of `capi` only, so that time may never
//! come. Therefore the value is sent to its loop, whose thread is attached.

use pyo3::prelude::*;

use super::loop_handle::LoopHandle;

/// A value with references to Python objects, which is dropped on the thread of its loop. If the loop is closed, the
/// value is dropped at once, and pyo3 defers the drop of its references.
#[derive(Debug)]
pub(crate) struct DropOnLoop<T: Send + 'static> {
    value: Option<T>,
    event_loop: LoopHandle,
}

impl<T: Send + 'static> DropOnLoop<T> {
    pub(crate) fn new(value: T, event_loop: &LoopHandle) -> DropOnLoop<T> {
        DropOnLoop { value: Some(value), event_loop: event_loop.clone() }
    }

    /// The value. It is never `None` before `into_inner` or the drop.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// Another value, of the same loop.
    pub(crate) fn beside<V: Send + 'static>(&self, value: V) -> DropOnLoop<V> {
        DropOnLoop::new(value, &self.event_loop)
    }

    /// Takes the value out. The caller is attached, and drops the value itself.
    pub(crate) fn into_inner(mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T: Send + 'static> Drop for DropOnLoop<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.event_loop.send(Box::new(move |_| {
                drop_attached(value);
                Ok(())
            }));
        }
    }
}

/// Drops a value on an attached thread. `capi` attaches without pyo3's knowledge, so this makes pyo3 aware of it:
/// otherwise pyo3 would defer the drop of references.
pub(crate) fn drop_attached<T>(value: T) {
    let mut value = Some(value);
    // While the interpreter finalizes, attaching fails. Then the value is dropped at the end of this function.
    let _ = Python::try_attach(|_| drop(value.take()));
}
