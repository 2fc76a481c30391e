//! The native engine: libssl's own functions on the `SSL` that CPython made for the connection.

use std::sync::Arc;

use pyo3::prelude::*;

use super::records::{End, RECORD, Room, Wrote, wrote};
use super::ssl_module::is_again;
use crate::capi::buffer::bytes_from;
use crate::capi::{Fallible, Raised, Ref, Slot};
use crate::libssl::{Io, Library, Outcome, Ssl};

#[derive(Debug)]
pub(crate) struct Native {
    pub(super) library: &'static Library,
    /// Alive as long as `raw`, which owns it.
    pub(super) ssl: Ssl,
    pub(super) io: Arc<Io>,
    /// The `_ssl._SSLSocket`. The connection keeps its owner, the `ssl.SSLObject`, which it knows weakly.
    pub(super) raw: Slot,
}

impl Native {
    /// So many bytes have come in this turn of the loop, and are read next.
    #[inline(always)]
    pub(super) fn before_read(&self, size: usize, turn: u64) {
        self.library.before_read(&self.io, size, turn);
    }

    /// Decrypts `data`, after what was kept before it, until nothing is left or the room is used up.
    pub(super) fn decrypt_lent(&self, data: &[u8], room: &mut Room<'_>) -> End {
        // SAFETY: taken back below, before `data` can go away.
        unsafe { self.io.lend(data) };
        let end = self.decrypt(room);
        self.io.take_back();
        end
    }

    pub(super) fn decrypt(&self, room: &mut Room<'_>) -> End {
        self.library.clear_errors();
        loop {
            let left = &mut room.memory[room.filled..];
            if left.len() < RECORD {
                return End::More;
            }
            let left = (left.as_mut_ptr().cast::<u8>(), left.len());
            // SAFETY: `raw` owns the SSL; we hold the GIL, and other threads may not use it meanwhile, as with
            // asyncio. The room is borrowed for us alone.
            match self.io.call_openssl(|| unsafe { self.library.read(self.ssl, left) }) {
                Outcome::Done(count) => {
                    room.filled += count;
                    if self.io.input_size() == 0 {
                        return End::Drained;
                    }
                }
                Outcome::WantRead => return End::Drained,
                // CPython finds out the exact error, or that it is an orderly close.
                Outcome::Closed | Outcome::Failed => match self.ask() {
                    Some(end) => return end,
                    None => return End::Drained,
                },
            }
        }
    }

    /// Has CPython do the read that ended. It gives up the GIL meanwhile, and runs finalizers.
    #[cold]
    fn ask(&self) -> Option<End> {
        let Some(raw) = self.raw.get() else { return Some(End::Closed) };
        let py = raw.py();
        match self.io.call_openssl(|| raw.bind(py).call_method1(Fallible("read"), (1,))) {
            // Nothing but b"" can come out here: libssl has just said that it has no more.
            Ok(_) => Some(End::Closed),
            Err(error) if is_again(py, &error) => None,
            Err(error) => Some(End::Failed(Ref::from(error.into_value(py).into_bound(py).into_any()))),
        }
    }

    /// Encrypts `data` into the output.
    pub(super) fn encrypt(&self, data: &[u8]) -> Result<Wrote, Raised> {
        self.library.clear_errors();
        // SAFETY: as in `decrypt`.
        match self.io.call_openssl(|| unsafe { self.library.write(self.ssl, data) }) {
            Outcome::Done(count) => Ok(Wrote::Bytes(count)),
            Outcome::WantRead => Ok(Wrote::WantRead),
            Outcome::Closed | Outcome::Failed => {
                let raw = self.raw.get().ok_or(Raised)?;
                let py = raw.py();
                let copy = bytes_from(data)?;
                let written =
                    self.io.call_openssl(|| raw.bind(py).call_method1(Fallible("write"), (copy.bind(py),)));
                wrote(py, written)
            }
        }
    }
}
