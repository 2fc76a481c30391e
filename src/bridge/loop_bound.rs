//! What belongs to a loop and may come to its end on another thread.
//!
//! A thread without the GIL cannot drop a reference to a Python object. pyo3 puts such a reference aside until Python
//! next calls one of its functions, and in a loop that runs for hours, where all that tasks call are functions of
//! `capi`, that may be never. So what is dropped on another thread is sent home, and what is dropped at home is dropped
//! with pyo3 knowing of the GIL.

use pyo3::prelude::*;

use super::port::Port;

/// A value with references to Python objects in it, which is dropped on the thread of a loop. When that is closed, pyo3
/// has it.
#[derive(Debug)]
pub(crate) struct LoopBound<T: Send + 'static> {
    value: Option<T>,
    home: Port,
}

impl<T: Send + 'static> LoopBound<T> {
    pub(crate) fn new(value: T, home: &Port) -> LoopBound<T> {
        LoopBound { value: Some(value), home: home.clone() }
    }

    /// The value, which is there as long as this is.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// The value, for who has the GIL.
    pub(crate) fn open(mut self) -> Option<T> {
        self.value.take()
    }
}

impl<T: Send + 'static> Drop for LoopBound<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.home.send(Box::new(move || {
                let_go(value);
                Ok(())
            }));
        }
    }
}

/// Drops a value on a thread that has the GIL.
pub(crate) fn let_go<T>(value: T) {
    let mut value = Some(value);
    // An interpreter that ends lets nobody in: then it is dropped all the same.
    let _ = Python::try_attach(|_| drop(value.take()));
}
