//! Arguments and results of the engines: room for plaintext, and the outcomes of reads and writes.

use std::mem::MaybeUninit;

use pyo3::prelude::*;

use super::ssl_module::is_again;
use crate::capi::{Raised, Ref};

/// The largest plaintext of one TLS record.
pub(super) const RECORD: usize = 16 * 1024;

/// Memory for plaintext. The first `filled` bytes were written.
#[derive(Debug)]
pub(super) struct Room<'a> {
    pub(super) memory: &'a mut [MaybeUninit<u8>],
    pub(super) filled: usize,
}

impl Room<'_> {
    /// Calls `decrypt` with the spare capacity of a vector.
    #[inline(always)]
    pub(super) fn in_vector(plain: &mut Vec<u8>, decrypt: impl FnOnce(&mut Room<'_>) -> End) -> End {
        let mut room = Room { memory: plain.spare_capacity_mut(), filled: 0 };
        let end = decrypt(&mut room);
        let filled = room.filled;
        // SAFETY: the first `filled` bytes of the spare capacity were written.
        unsafe { plain.set_len(plain.len() + filled) };
        end
    }
}

/// How a batch of reads ended.
#[derive(Debug)]
pub(super) enum End {
    /// All complete records were decrypted.
    Drained,
    /// The room is used up, and there may be more data.
    More,
    /// The peer has sent close_notify.
    Closed,
    /// A read has failed with this exception.
    Failed(Ref),
}

/// The outcome of a write.
#[derive(Debug)]
pub(super) enum Wrote {
    Bytes(usize),
    /// OpenSSL needs data from the peer first.
    WantRead,
}

/// The outcome of CPython's `write`.
pub(super) fn wrote(py: Python<'_>, written: PyResult<Bound<'_, PyAny>>) -> Result<Wrote, Raised> {
    match written.and_then(|count| count.extract()) {
        Ok(count) => Ok(Wrote::Bytes(count)),
        Err(error) if is_again(py, &error) => Ok(Wrote::WantRead),
        Err(error) => Err(error.into()),
    }
}
