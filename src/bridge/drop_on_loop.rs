//! Values that belong to a loop and may end on another thread.
//!
//! A detached thread cannot drop a reference to a Python object. pyo3 puts such a reference aside until Python next calls
//! one of pyo3's functions. A loop that runs for hours calls functions of `capi` only, so that may be never. Therefore a
//! value that ends on another thread is sent to its loop, which drops it attached.

use pyo3::prelude::*;

use super::loop_handle::LoopHandle;

/// A value with references to Python objects in it, which is dropped on the thread of its loop. When the loop is closed,
/// pyo3 takes the references.
#[derive(Debug)]
pub(crate) struct DropOnLoop<T: Send + 'static> {
    value: Option<T>,
    event_loop: LoopHandle,
}

impl<T: Send + 'static> DropOnLoop<T> {
    pub(crate) fn new(value: T, event_loop: &LoopHandle) -> DropOnLoop<T> {
        DropOnLoop { value: Some(value), event_loop: event_loop.clone() }
    }

    /// The value, which is there as long as this is.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// The value, for a caller that is attached.
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

/// Drops a value on a thread that is attached, and lets pyo3 know that it is.
pub(crate) fn drop_attached<T>(value: T) {
    let mut value = Some(value);
    // An interpreter that ends attaches nobody: then the value is dropped all the same.
    let _ = Python::try_attach(|_| drop(value.take()));
}
