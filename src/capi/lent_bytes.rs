//! The `bytes` objects that reads have given away, used again when nobody has hold of them any more.
//!
//! [`spare_bytes`](super::spare_bytes) keeps a message that its protocol lets go at once. What a read gives to whoever awaits
//! it lives longer: until the next message of the same connection, most often. So the last ones are remembered, and the
//! oldest of them becomes the next of its length, if only we refer to it by then.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;

use pyo3::ffi;

use super::buffer::{self, RawBytes};
use super::error::Raised;
use super::object::Ref;

/// Shorter ones come from the allocator's quick lists.
const SHORTEST: usize = 1000;
/// Longer ones are more than a quiet process should keep.
const LONGEST: usize = 4 * 1024;
/// How many are remembered: as many connections are served in turn without asking the allocator.
const MOST: usize = 64;
/// After so many looks in a row that have found the oldest in somebody's hands, it is his for good.
const PATIENCE: u32 = 2 * MOST as u32;

/// The oldest first. Guarded by the GIL.
struct Lent {
    objects: UnsafeCell<VecDeque<Ref>>,
    /// How often the oldest was not free.
    misses: Cell<u32>,
}

// SAFETY: touched only with the GIL held, and never across a call that could release it.
unsafe impl Sync for Lent {}

static LENT: Lent = Lent { objects: UnsafeCell::new(VecDeque::new()), misses: Cell::new(0) };

impl Lent {
    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; no borrow is held while Python code can run")]
    #[inline(always)]
    fn objects(&self) -> &mut VecDeque<Ref> {
        // SAFETY: see the reason above: the end of a `bytes` runs none.
        unsafe { &mut *self.objects.get() }
    }

    /// The oldest, if it is free and of this length. One of another length is let go.
    #[inline(always)]
    fn take(&self, size: usize) -> Option<Ref> {
        let oldest = self.objects().front()?;
        // SAFETY: a live object.
        if unsafe { ffi::Py_REFCNT(oldest.as_ptr()) } == 1 {
            self.misses.set(0);
            let spare = self.objects().pop_front()?;
            // SAFETY: bytes.
            let length = unsafe { ffi::PyBytes_Size(spare.as_ptr()) } as usize;
            return (length == size).then_some(spare);
        }
        self.misses.set(self.misses.get() + 1);
        if self.misses.get() == PATIENCE {
            self.misses.set(0);
            drop(self.objects().pop_front());
        }
        None
    }
}

/// Is a message of this length worth it?
#[inline(always)]
fn is_kept(size: usize) -> bool {
    (SHORTEST..=LONGEST).contains(&size)
}

/// A `bytes` of this length that nobody has seen, to be filled. When it is given away, [`lend`] is to be told.
#[inline(always)]
pub(crate) fn with_capacity(size: usize) -> Result<RawBytes, Raised> {
    if is_kept(size)
        && let Some(spare) = LENT.take(size)
    {
        // SAFETY: a bytes object of this length that nobody else has hold of.
        return Ok(unsafe { RawBytes::again(spare) });
    }
    RawBytes::with_capacity(size)
}

/// Remembers an object that is about to be given away.
#[inline(always)]
pub(crate) fn lend(bytes: Ref) -> Ref {
    // SAFETY: bytes.
    if is_kept(unsafe { ffi::PyBytes_Size(bytes.as_ptr()) } as usize) && LENT.objects().len() < MOST {
        LENT.objects().push_back(bytes.clone_ref());
    }
    bytes
}

/// `bytes(data)`, to be given away.
#[inline(always)]
pub(crate) fn bytes_from(data: &[u8]) -> Result<Ref, Raised> {
    if !is_kept(data.len()) {
        return buffer::bytes_from(data);
    }
    // SAFETY: an object of this length.
    Ok(lend(unsafe { with_capacity(data.len())?.filled(data) }))
}
