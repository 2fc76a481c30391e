//! What an engine is given and what it gives back: room for plaintext, and how a read or a write ended.

use std::mem::MaybeUninit;

use pyo3::prelude::*;

use super::ssl_module::is_again;
use crate::capi::{Raised, Ref};

/// The largest plaintext of one TLS record.
pub(super) const RECORD: usize = 16 * 1024;

/// Memory that libssl decrypts into: its first `filled` bytes are plaintext.
#[derive(Debug)]
pub(super) struct Room<'a> {
    pub(super) memory: &'a mut [MaybeUninit<u8>],
    pub(super) filled: usize,
}

impl Room<'_> {
    /// Decrypts into what room a vector has left.
    #[inline(always)]
    pub(super) fn in_vector(plain: &mut Vec<u8>, decrypt: impl FnOnce(&mut Room<'_>) -> End) -> End {
        let mut room = Room { memory: plain.spare_capacity_mut(), filled: 0 };
        let end = decrypt(&mut room);
        let filled = room.filled;
        // SAFETY: that much of the spare capacity was filled.
        unsafe { plain.set_len(plain.len() + filled) };
        end
    }
}

/// How a batch of reads ended.
#[derive(Debug)]
pub(super) enum End {
    /// All there is was decrypted.
    Drained,
    /// The room is used up; there may be more.
    More,
    /// The peer has sent close_notify.
    Closed,
    /// The exception to fail with.
    Failed(Ref),
}

/// How a write ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    Bytes(usize),
    /// The peer has to say something first.
    WantRead,
}

/// What came of CPython's `write`.
pub(super) fn wrote(py: Python<'_>, written: PyResult<Bound<'_, PyAny>>) -> Result<Wrote, Raised> {
    match written.and_then(|count| count.extract()) {
        Ok(count) => Ok(Wrote::Bytes(count)),
        Err(error) if is_again(py, &error) => Ok(Wrote::WantRead),
        Err(error) => Err(error.into()),
    }
}
