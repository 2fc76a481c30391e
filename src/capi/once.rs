//! A static that is filled once, by the module's initialisation or by the package's Python half.

use std::sync::OnceLock;

/// A value that holds Python objects, set once and read only afterwards.
#[derive(Debug)]
pub(crate) struct Once<T>(OnceLock<T>);

// SAFETY: the value is set and read with the GIL held, and it is never dropped.
unsafe impl<T> Send for Once<T> {}
// SAFETY: the value is set and read with the GIL held, and it is never dropped.
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
