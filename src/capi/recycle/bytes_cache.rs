//! Reuses the `bytes` objects of messages for messages of the same length.
//!
//! CPython's allocator has free lists for objects of up to 512 bytes. To allocate and free a longer bytes object
//! costs as much as the rest of an echo. Nothing can be attached to bytes but their hash, which is reset. A
//! memoryview, a buffer or a ctypes object made of them holds a reference. What a program sees is what it would see
//! if the allocator had found the same memory.

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;

use crate::capi::buffer::{self, RawBytes};
use crate::capi::error::Raised;
use crate::capi::object::Ref;
use crate::capi::section::REUSES;

/// Shorter objects are not kept, because the allocator is as fast.
const SHORTEST: usize = 512;
/// Longer objects are not kept, because to copy their content costs more than to allocate them.
const LONGEST: usize = 32 * 1024;
/// An idle loop does not keep much more than this, in bytes. It is enough for messages of 1 KiB from 64 connections in
/// a turn.
const TOTAL: usize = 64 * 1024;

/// Messages that the transports of a loop have delivered or sent, and to which nothing else refers. All have the length
/// that was last asked for.
#[derive(Debug)]
pub(crate) struct BytesCache {
    objects: RefCell<Vec<Ref>>,
    /// Zero until the loop needs a message that is worth keeping.
    length: Cell<usize>,
}

impl BytesCache {
    pub(crate) const fn new() -> BytesCache {
        BytesCache { objects: RefCell::new(Vec::new()), length: Cell::new(0) }
    }

    #[inline(always)]
    fn take(&self, size: usize) -> Option<RawBytes> {
        if !REUSES {
            return None;
        }
        if size != self.length.get() {
            self.expect(size);
            return None;
        }
        let object = self.objects.borrow_mut().pop()?;
        // SAFETY: `keep` lets in `bytes` objects to which it has the only reference.
        Some(unsafe { RawBytes::again(object) })
    }

    /// From now on, objects of this length are kept, if it is worth it.
    #[inline(never)]
    fn expect(&self, size: usize) {
        if (SHORTEST..=LONGEST).contains(&size) {
            self.length.set(size);
            // Dropping `bytes` objects runs no other code.
            self.objects.borrow_mut().clear();
        }
    }

    /// A `bytes` of this length, to be filled.
    #[inline(always)]
    pub(crate) fn with_capacity(&self, size: usize) -> Result<RawBytes, Raised> {
        self.take(size).map_or_else(|| RawBytes::with_capacity(size), Ok)
    }

    /// `bytes(data)`.
    #[inline(always)]
    pub(crate) fn bytes_from(&self, data: &[u8]) -> Result<Ref, Raised> {
        match self.take(data.len()) {
            // SAFETY: an object of exactly this length.
            Some(bytes) => Ok(unsafe { bytes.filled(data) }),
            None => buffer::bytes_from(data),
        }
    }

    /// Keeps an object that was delivered or sent, for a later message, if this is the last reference to it.
    #[inline(always)]
    pub(crate) fn keep(&self, data: Ref) {
        if !REUSES {
            return;
        }
        let size = self.length.get();
        if data.is_unique() && data.exact_bytes().is_some_and(|content| content.len() == size) {
            let mut objects = self.objects.borrow_mut();
            if objects.len() * size < TOTAL {
                objects.push(data);
            }
        }
    }

    /// Keeps objects that were sent completely, as [`BytesCache::keep`] does.
    #[inline(always)]
    pub(crate) fn keep_all(&self, sent: &mut SmallVec<[Ref; 2]>) {
        if REUSES && self.length.get() != 0 {
            while let Some(data) = sent.pop() {
                self.keep(data);
            }
        }
    }

    pub(crate) fn clear(&self) {
        self.objects.take();
    }
}
