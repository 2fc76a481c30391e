//! The data that a StreamReader has received and that was not read yet.
//!
//! It is one unfinished `bytes` object. No other code has a reference to it, so it can still grow, and a read of
//! all that is in it takes the object itself away instead of a copy. A message that is read in the pieces in which
//! it arrived, the common case, is copied once on its way from the socket, and a large one that is waited for not at
//! all, because it is received into the object that its reader will get.
//!
//! Once Python code has read the reader's `_buffer`, the content is in a `bytearray` instead, which others may
//! read, change, and lock by a memoryview.

use std::sync::Once;

use crate::capi::buffer::{RawBytes, bytes_from};
use crate::capi::byte_array::ByteArray;
use crate::capi::recycle::bytes_cache::BytesCache;
use crate::capi::{Raised, Ref};

/// All zero is an empty store.
#[derive(Debug)]
pub(crate) struct Store {
    bytes: Option<RawBytes>,
    start: usize,
    end: usize,
    capacity: usize,
    /// In the place of all that, if it is set: an exact bytearray.
    shared: Option<ByteArray>,
}

/// From this size on an object for one message is large.
const LARGE: usize = 32 * 1024;

static HEAP: Once = Once::new();

/// Lets the C library keep freed memory of some large messages.
///
/// glibc gives the top of its heap back to the system as soon as 128 KiB are free there, and with messages of such a
/// size that is after each of them: measured at 100 KiB, two `brk` and 13 page faults a message, more than half
/// of its cost. It learns otherwise from the first large block that is freed, so here is one, of which no
/// page is ever touched. Other C libraries make nothing of it.
fn keep_heap() {
    // SAFETY: a block, if there is one, is freed at once. `black_box` keeps the two calls from being optimised away.
    unsafe { libc::free(std::hint::black_box(libc::malloc(1024 * 1024))) }
}

/// Memory behind the content, writable until anything else is done with the store.
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

    /// The content. It may change as soon as Python code runs.
    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[u8] {
        let place = match (&self.shared, &self.bytes) {
            (Some(shared), _) => shared.as_mut_ptr().cast_const(),
            // SAFETY: `start` is at most the capacity.
            (None, Some(bytes)) => unsafe { bytes.as_ptr().add(self.start) },
            (None, None) => return &[],
        };
        // SAFETY: everything before `end` was written, and all of a bytearray.
        unsafe { std::slice::from_raw_parts(place, self.len()) }
    }

    /// The content as a bytearray that others may hold, from now on.
    pub(crate) fn share(&mut self) -> Result<Ref, Raised> {
        let shared = match &self.shared {
            Some(shared) => shared.clone(),
            None => ByteArray::new(self.as_slice())?,
        };
        let object = shared.object().clone_ref();
        *self = Store { shared: Some(shared), ..Store::empty() };
        Ok(object)
    }

    /// A store whose content is in `shared`, which must be an exact bytearray.
    pub(crate) fn of(shared: Ref) -> Result<Store, Ref> {
        Ok(Store { shared: Some(ByteArray::exact(shared)?), ..Store::empty() })
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The bytearray that others may hold, if there is one. CPython's functions for it may run Python code: with 3.11
    /// the collector runs as soon as they make an object. So the caller owns it, and borrows no store meanwhile.
    #[inline(always)]
    pub(crate) fn shared(&self) -> Option<ByteArray> {
        self.shared.clone()
    }

    /// For what is not shared: adds data at the end. A first object comes out of the cache, if there is one.
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
        let room = self.reserve(data.len())?;
        debug_assert!(room.size >= data.len());
        // SAFETY: `reserve` has made that much room.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), room.place, data.len()) };
        self.end += data.len();
        Ok(())
    }

    /// For what is not shared: makes room for at least `least` bytes and says where, and how much there is.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, least: usize) -> Result<Room, Raised> {
        if self.bytes.is_none() || self.capacity - self.end < least {
            self.grow(least)?;
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

    /// `count` bytes were written to the room that [`Store::reserve`] gave.
    pub(crate) fn commit(&mut self, count: usize) {
        debug_assert!(count <= self.capacity - self.end);
        self.end += count;
    }

    fn grow(&mut self, least: usize) -> Result<(), Raised> {
        if least >= LARGE {
            HEAP.call_once(keep_heap);
        }
        let length = self.len();
        // Twice the content when there is some: adding byte by byte must not copy everything each time.
        let capacity = (length + least).max(2 * length);
        let mut bytes = RawBytes::with_capacity(capacity)?;
        let content = self.as_slice();
        // SAFETY: a fresh object with room for the content.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), bytes.as_mut_ptr(), length) };
        *self = Store { bytes: Some(bytes), start: 0, end: length, capacity, shared: None };
        Ok(())
    }

    /// For what is not shared: takes the first `count` bytes, of which there are that many.
    #[inline(always)]
    pub(crate) fn take(&mut self, count: usize) -> Result<Ref, Raised> {
        debug_assert!(count <= self.len() && !self.is_shared());
        if self.start == 0 && count == self.end && count >= self.capacity / 2 {
            let whole = std::mem::replace(self, Store::empty());
            return match whole.bytes {
                // SAFETY: everything before `end` was written.
                Some(bytes) if count == whole.capacity => Ok(unsafe { bytes.whole() }),
                // SAFETY: as above.
                Some(bytes) => unsafe { bytes.finish(count) },
                None => bytes_from(&[]),
            };
        }
        let taken = bytes_from(&self.as_slice()[..count])?;
        self.discard(count);
        Ok(taken)
    }

    /// For what is not shared: forgets the first `count` bytes, of which there are that many.
    pub(crate) fn discard(&mut self, count: usize) {
        debug_assert!(count <= self.len() && !self.is_shared());
        self.start += count;
        if self.start >= self.end {
            *self = Store::empty();
        }
    }

    pub(crate) const fn empty() -> Store {
        Store { bytes: None, start: 0, end: 0, capacity: 0, shared: None }
    }
}
