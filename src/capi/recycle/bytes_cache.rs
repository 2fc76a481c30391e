//! The `bytes` objects of messages, filled again for messages of the same length.
//!
//! A bytes object that is longer than what the allocator keeps quick lists for costs as much to allocate and free as the
//! rest of an echo. Nothing can be attached to bytes but their hash, which is reset. A memoryview, a buffer or a ctypes
//! object made of them holds a reference. What a program sees is what it would see if the allocator had found the same
//! memory; `sys.getrefcount` alone counts one more for a [`lend`]ed object, as it does for bytes that CPython shares.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

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

// -- a message that its protocol drops at once ---------------------------------------------------------------------------

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

// -- what a read returns to the task that awaits it ----------------------------------------------------------------------

/// Shorter ones come from the allocator's quick lists.
const SHORTEST: usize = 1000;
/// Longer ones are more than an idle process should keep.
const LONGEST: usize = 4 * 1024;
/// How many are remembered: so many connections can be served in turn without an allocation.
const MOST: usize = 64;
/// After this many failed tries, stop trying to recycle the oldest object.
const PATIENCE: u32 = 2 * MOST as u32;

/// The objects that reads have returned, the oldest first. Most live until the next message of their connection. They
/// belong to the process, because a stream reader may have no loop of ours.
struct LentBytes {
    objects: RefCell<VecDeque<Ref>>,
    /// How often in a row the oldest was not free.
    misses: Cell<u32>,
}

// SAFETY: touched only with the GIL held, and never across a call that could release it: the end of a `bytes` runs no code.
unsafe impl Sync for LentBytes {}

static LENT: LentBytes = LentBytes { objects: RefCell::new(VecDeque::new()), misses: Cell::new(0) };

impl LentBytes {
    /// The oldest, if it is free and of this length. One of another length is dropped.
    #[inline(always)]
    fn take(&self, size: usize) -> Option<Ref> {
        let mut objects = self.objects.borrow_mut();
        if is_free(objects.front()?) {
            self.misses.set(0);
            return objects.pop_front().filter(|object| length(object) == size);
        }
        self.misses.set(self.misses.get() + 1);
        if self.misses.get() == PATIENCE {
            self.misses.set(0);
            drop(objects.pop_front());
        }
        None
    }
}

/// Is a message of this length worth it?
#[inline(always)]
fn is_lent(size: usize) -> bool {
    (SHORTEST..=LONGEST).contains(&size)
}

/// A `bytes` of this length that nobody has seen, to be filled. [`lend`] returns it to the program.
#[inline(always)]
pub(crate) fn with_capacity(size: usize) -> Result<RawBytes, Raised> {
    if is_lent(size)
        && let Some(object) = LENT.take(size)
    {
        // SAFETY: a bytes object of this length that nobody else refers to.
        return Ok(unsafe { RawBytes::again(object) });
    }
    RawBytes::with_capacity(size)
}

/// Remembers an object that is about to be returned to the program.
#[inline(always)]
pub(crate) fn lend(bytes: Ref) -> Ref {
    if is_lent(length(&bytes)) {
        let mut objects = LENT.objects.borrow_mut();
        if objects.len() < MOST {
            objects.push_back(bytes.clone_ref());
        }
    }
    bytes
}

/// `bytes(data)`, to be returned to the program.
#[inline(always)]
pub(crate) fn bytes_from(data: &[u8]) -> Result<Ref, Raised> {
    if !is_lent(data.len()) {
        return buffer::bytes_from(data);
    }
    // SAFETY: an object of this length.
    Ok(lend(unsafe { with_capacity(data.len())?.filled(data) }))
}
