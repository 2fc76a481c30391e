//! The `bytes` objects of messages, filled again for messages of the same length.
//!
//! A bytes object that is longer than what the allocator keeps quick lists for costs as much to allocate and free as the
//! rest of an echo. Nothing can be attached to bytes but their hash, which is reset. A memoryview, a buffer or a ctypes
//! object made of them holds a reference. What a program sees is what it would see if the allocator had found the same
//! memory.

use std::cell::Cell;

use pyo3::ffi;

use crate::capi::buffer::{self, RawBytes};
use crate::capi::error::Raised;
use crate::capi::object::{Ref, Slot};

/// Is ours the only reference?
#[inline(always)]
fn is_free(bytes: &Ref) -> bool {
    // SAFETY: a live object.
    unsafe { ffi::Py_REFCNT(bytes.as_ptr()) == 1 }
}

#[inline(always)]
fn length(bytes: &Ref) -> usize {
    // SAFETY: a bytes object.
    unsafe { ffi::PyBytes_Size(bytes.as_ptr()) as usize }
}

/// The last message that a loop has delivered, if its protocol has not kept it. One object at most.
#[derive(Debug)]
pub(crate) struct DeliveredBytes {
    object: Slot,
    /// Its length; 0 if there is none.
    length: Cell<usize>,
}

impl DeliveredBytes {
    /// Shorter ones are allocated as quickly.
    const SHORTEST: usize = 512;
    /// To copy longer ones costs more than to allocate them, and they are more than an idle loop should keep.
    const LONGEST: usize = 32 * 1024;

    pub(crate) const fn new() -> DeliveredBytes {
        DeliveredBytes { object: Slot::empty(), length: Cell::new(0) }
    }

    /// `bytes(data)`.
    #[inline(always)]
    pub(crate) fn bytes_from(&self, data: &[u8]) -> Result<Ref, Raised> {
        if data.is_empty() || data.len() != self.length.get() {
            return buffer::bytes_from(data);
        }
        match self.take() {
            // SAFETY: a bytes object of exactly this length that nobody else refers to.
            Some(object) => Ok(unsafe { RawBytes::again(object).filled(data) }),
            None => buffer::bytes_from(data),
        }
    }

    /// Takes back what came from [`DeliveredBytes::bytes_from`] and was delivered, unless somebody else refers to it.
    #[inline(always)]
    pub(crate) fn keep(&self, data: Ref) {
        let size = length(&data);
        if is_free(&data) && (Self::SHORTEST..=Self::LONGEST).contains(&size) {
            self.length.set(size);
            self.object.set(Some(data));
        }
    }

    pub(crate) fn clear(&self) {
        drop(self.take());
    }

    #[inline(always)]
    fn take(&self) -> Option<Ref> {
        self.length.set(0);
        self.object.take()
    }
}
