//! A static that is filled once, by the module's initialisation or by the package's Python half.
//!
//! What it holds are references to Python objects, which never change, and the checks of `compat`, whose fields are atomics
//! or, with a GIL, cells that it guards.

use std::sync::OnceLock;

/// A value that holds Python objects, set once and read only afterwards.
#[derive(Debug)]
pub(crate) struct Once<T>(OnceLock<T>);

// SAFETY: the value is set and read by attached threads, and it is never dropped.
unsafe impl<T> Send for Once<T> {}
// SAFETY: it does not change after it was set, and what changes inside of it is atomic: see the head of this file.
unsafe impl<T> Sync for Once<T> {}

impl<T> Once<T> {
    pub(crate) const fn new() -> Once<T> {
        Once(OnceLock::new())
    }

    /// Sets the value. A second import of the package keeps the value of the first.
    pub(crate) fn set(&self, value: T) {
        let _ = self.0.set(value);
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.get()
    }
}
