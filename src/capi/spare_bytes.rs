//! A message's `bytes` object, used again for the next message.
//!
//! What is longer than the allocator's quick lists take costs it as much to find room for, and to join to its neighbours
//! when it is let go, as all the rest of an echo costs the loop. Most messages are let go as soon as the protocol has seen
//! them, and many are as long as the one before. So an object that nobody else has hold of is kept when it was delivered,
//! and its content replaced when the next message has the same length: what is seen is what would be seen if the
//! allocator had found the same memory.

use std::cell::Cell;

use pyo3::ffi;

use super::buffer::{RawBytes, bytes_from};
use super::error::Raised;
use super::object::{Ref, Slot};

/// Shorter ones are made as quickly.
const SHORTEST: usize = 512;
/// Copying longer ones costs more than making them, and they are more than a quiet loop should keep.
const LONGEST: usize = 32 * 1024;

/// One such object at most. Guarded by the GIL.
#[derive(Debug)]
pub(crate) struct SpareBytes {
    object: Slot,
    /// Its length; nothing is kept with 0.
    size: Cell<usize>,
}

impl SpareBytes {
    pub(crate) const fn new() -> SpareBytes {
        SpareBytes { object: Slot::empty(), size: Cell::new(0) }
    }

    /// `bytes(data)`.
    #[inline(always)]
    pub(crate) fn bytes_from(&self, data: &[u8]) -> Result<Ref, Raised> {
        if data.is_empty() || data.len() != self.size.get() {
            return bytes_from(data);
        }
        match self.take() {
            // SAFETY: a bytes object of exactly this length that nobody else has hold of.
            Some(spare) => Ok(unsafe { RawBytes::again(spare).filled(data) }),
            None => bytes_from(data),
        }
    }

    /// Takes back what came from [`SpareBytes::bytes_from`] and was delivered. It is let go if somebody else holds it.
    #[inline(always)]
    pub(crate) fn keep(&self, data: Ref) {
        // SAFETY: a live bytes object.
        let (count, size) =
            unsafe { (ffi::Py_REFCNT(data.as_ptr()), ffi::PyBytes_Size(data.as_ptr()) as usize) };
        if count == 1 && (SHORTEST..=LONGEST).contains(&size) {
            self.size.set(size);
            self.object.set(Some(data));
        }
    }

    /// Lets it go.
    pub(crate) fn clear(&self) {
        drop(self.take());
    }

    #[inline(always)]
    fn take(&self) -> Option<Ref> {
        self.size.set(0);
        self.object.take()
    }
}
