//! The received data of a StreamReader that was not read yet.
//!
//! It is one unfinished `bytes` object. No other code has a reference to it, so more data can be appended. A read of
//! the whole content returns the object itself, without a copy. So in the common case, in which each read returns what
//! one receive has brought, data is copied once. A large message for which a read is waiting is not copied, because it
//! is received into the object that the read returns.
//!
//! Once Python code has read the reader's `_buffer`, the content is in a `bytearray` instead. Other code may read it,
//! change it, and lock it with a memoryview.

use crate::capi::buffer::{RawBytes, bytes_from};
use crate::capi::byte_array::ByteArray;
use crate::capi::recycle::bytes_cache::BytesCache;
use crate::capi::section::{AS_FREE_THREADED, FREE_THREADED};
use crate::capi::{Raised, Ref};
use crate::transport::base::heap;

/// Zeroed memory is an empty store.
#[derive(Debug)]
pub(crate) struct Store {
    bytes: Option<RawBytes>,
    start: usize,
    end: usize,
    capacity: usize,
    /// If set, the content is in this bytearray, and the other fields are not used.
    shared: Option<ByteArray>,
}

/// From this size on, a growing store keeps its object: the system moves the pages, where a new object needs a copy.
const PAGES: usize = 128 * 1024;

/// Writable memory after the content. It is valid until another method of the store is called.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) place: *mut u8,
    pub(crate) size: usize,
}

impl Store {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match &self.shared {
            Some(shared) => shared.len(),
            None => self.end - self.start,
        }
    }

    /// The content. It may change when Python code runs.
    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[u8] {
        let place = match (&self.shared, &self.bytes) {
            (Some(shared), _) => shared.as_mut_ptr().cast_const(),
            // SAFETY: `start` is at most the capacity.
            (None, Some(bytes)) => unsafe { bytes.as_ptr().add(self.start) },
            (None, None) => return &[],
        };
        // SAFETY: all bytes before `end` were written, and so were all bytes of a bytearray.
        unsafe { std::slice::from_raw_parts(place, self.len()) }
    }

    /// Moves the content to a bytearray, if that was not done, and returns the bytearray.
    pub(crate) fn share(&mut self) -> Result<Ref, Raised> {
        let shared = match &self.shared {
            Some(shared) => shared.clone(),
            None => ByteArray::new(self.as_slice())?,
        };
        let object = shared.object().clone_ref();
        self.put(Store { shared: Some(shared), ..Store::empty() });
        Ok(object)
    }

    /// A store whose content is in `shared`, which must be an exact bytearray.
    pub(crate) fn of(shared: Ref) -> Result<Store, Ref> {
        Ok(Store { shared: Some(ByteArray::exact(shared)?), ..Store::empty() })
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The bytearray, if there is one, as an owned reference. CPython's functions for it may run Python code: on 3.11
    /// creating an object can run the garbage collector. So the caller must not borrow the store while it uses the
    /// bytearray.
    #[inline(always)]
    pub(crate) fn shared(&self) -> Option<ByteArray> {
        self.shared.clone()
    }

    /// Appends data to a store without a bytearray. Takes a new object from the cache, if there is one.
    #[inline(always)]
    pub(crate) fn append(&mut self, data: &[u8], cache: Option<&BytesCache>) -> Result<(), Raised> {
        debug_assert!(!self.is_shared());
        if self.bytes.is_none() {
            self.bytes = Some(match cache {
                Some(cache) => cache.with_capacity(data.len())?,
                None => RawBytes::with_capacity(data.len())?,
            });
            (self.start, self.end, self.capacity) = (0, 0, data.len());
        }
        if AS_FREE_THREADED && self.capacity - self.end < data.len() {
            // `put` may let another thread use the store, so it comes last.
            let mut grown = self.grown(data.len(), usize::MAX)?;
            grown.fill(data)?;
            self.put(grown);
            return Ok(());
        }
        self.fill(data)
    }

    #[inline(always)]
    fn fill(&mut self, data: &[u8]) -> Result<(), Raised> {
        let room = self.reserve(data.len(), usize::MAX)?;
        debug_assert!(room.size >= data.len());
        // SAFETY: `reserve` has returned room for at least `data.len()` bytes.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), room.place, data.len()) };
        self.end += data.len();
        Ok(())
    }

    /// Reserves room for at least `least` bytes in a store without a bytearray. It is expected to have `total` bytes
    /// at most.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, least: usize, total: usize) -> Result<Room, Raised> {
        if self.bytes.is_none() || self.capacity - self.end < least {
            let grown = self.grown(least, total)?;
            self.put(grown);
        }
        match &mut self.bytes {
            Some(bytes) => Ok(Room {
                // SAFETY: `end` is at most the capacity.
                place: unsafe { bytes.as_mut_ptr().add(self.end) },
                size: self.capacity - self.end,
            }),
            None => Err(Raised),
        }
    }

    /// `count` bytes were written to the room that [`Store::reserve`] has returned.
    pub(crate) fn commit(&mut self, count: usize) {
        debug_assert!(count <= self.capacity - self.end);
        self.end += count;
    }

    /// Takes `store` for its own. On a free-threaded build other threads may use this one while what it had is dropped.
    #[inline(always)]
    fn put(&mut self, store: Store) {
        if AS_FREE_THREADED {
            drop(std::mem::replace(self, store));
        } else {
            *self = store;
        }
    }

    /// A store with the same content, and room for at least `least` bytes more.
    fn grown(&mut self, least: usize, total: usize) -> Result<Store, Raised> {
        let length = self.len();
        // At least twice the content, so that appending single bytes does not copy the content each time. But not more
        // than is expected.
        let capacity = (length + least).max((2 * length).min(total));
        heap::keep(capacity);
        // On a free-threaded build another thread could append to the emptied store meanwhile.
        if !FREE_THREADED && length >= PAGES && self.start == 0 {
            let bytes = std::mem::replace(self, Store::empty()).bytes.ok_or(Raised)?;
            let bytes = Some(bytes.resized(capacity)?);
            return Ok(Store { bytes, start: 0, end: length, capacity, shared: None });
        }
        let mut bytes = RawBytes::with_capacity(capacity)?;
        let content = self.as_slice();
        // SAFETY: a new object with room for the content.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), bytes.as_mut_ptr(), length) };
        Ok(Store { bytes: Some(bytes), start: 0, end: length, capacity, shared: None })
    }

    /// Removes the first `count` bytes from a store without a bytearray, and returns them. There are at least that
    /// many.
    #[inline(always)]
    pub(crate) fn take(&mut self, count: usize) -> Result<Ref, Raised> {
        debug_assert!(count <= self.len() && !self.is_shared());
        if self.start == 0 && count == self.end && count >= self.capacity / 2 {
            let whole = std::mem::replace(self, Store::empty());
            return match whole.bytes {
                // SAFETY: all bytes before `end` were written.
                Some(bytes) if count == whole.capacity => Ok(unsafe { bytes.whole() }),
                // SAFETY: the first `count` bytes were written.
                Some(bytes) => unsafe { bytes.finish(count) },
                None => bytes_from(&[]),
            };
        }
        let taken = bytes_from(&self.as_slice()[..count])?;
        self.discard(count);
        Ok(taken)
    }

    /// Drops the first `count` bytes of a store without a bytearray. There are at least that many.
    pub(crate) fn discard(&mut self, count: usize) {
        debug_assert!(count <= self.len() && !self.is_shared());
        self.start += count;
        if self.start >= self.end {
            self.put(Store::empty());
        }
    }

    pub(crate) const fn empty() -> Store {
        Store { bytes: None, start: 0, end: 0, capacity: 0, shared: None }
    }
}
