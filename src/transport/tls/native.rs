//! The native engine: calls libssl's functions on the `SSL` that CPython has created for the connection.

use std::sync::Arc;

use pyo3::prelude::*;

use super::records::{End, RECORD, Room, Wrote, wrote};
use super::ssl_module::is_again;
use crate::capi::buffer::bytes_from;
use crate::capi::error::raise_os_error;
use crate::capi::{Fallible, Raised, Ref, Slot, section};
use crate::libssl::{Io, Library, Outcome, Ssl};

#[derive(Debug)]
pub(crate) struct Native {
    pub(super) library: &'static Library,
    /// It is alive as long as `raw`, which owns it.
    pub(super) ssl: Ssl,
    pub(super) io: Arc<Io>,
    /// The `_ssl._SSLSocket`. It has only a weak reference to its `ssl.SSLObject`, which the connection keeps alive.
    pub(super) raw: Slot,
}

impl Native {
    /// Called before a receive of `size` bytes is decrypted in this turn of the loop.
    #[inline(always)]
    pub(super) fn before_read(&self, size: usize, turn: u64) {
        self.library.before_read(&self.io, size, turn);
    }

    /// Decrypts the stored input and then `data`, until all is read or the room is used up.
    pub(super) fn decrypt_lent(&self, data: &[u8], room: &mut Room<'_>) -> End {
        self.exclusively(|| {
            // SAFETY: the loan ends below, while `data` is still borrowed.
            unsafe { self.io.lend(data) };
            let end = self.decrypt_stored(room);
            self.io.take_back();
            end
        })
    }

    /// Runs `body`, which uses the SSL, in a section of its owner, as the methods of `_ssl` do. So on a free-threaded
    /// build a thread that asks the SSLObject for a certificate, say, waits for its end.
    #[inline(always)]
    fn exclusively<T>(&self, body: impl FnOnce() -> T) -> T {
        let owner = self.raw.as_ptr();
        if owner.is_null() {
            return body();
        }
        // SAFETY: the slot's reference keeps the owner alive. Only the collector clears it, which needs this thread.
        unsafe { section::hold(owner, body) }
    }

    pub(super) fn decrypt(&self, room: &mut Room<'_>) -> End {
        self.exclusively(|| self.decrypt_stored(room))
    }

    /// The caller is in a section of the SSL's owner.
    fn decrypt_stored(&self, room: &mut Room<'_>) -> End {
        self.library.clear_errors();
        loop {
            let left = &mut room.memory[room.filled..];
            if left.len() < RECORD {
                return End::More;
            }
            let left = (left.as_mut_ptr().cast::<u8>(), left.len());
            // SAFETY: `raw` owns the SSL, and this thread is in a section of it. The room is borrowed exclusively.
            match self.io.call_openssl(|| unsafe { self.library.read(self.ssl, left) }) {
                Outcome::Done(count) => {
                    room.filled += count;
                    if self.io.input_size() == 0 {
                        return End::Drained;
                    }
                }
                Outcome::WantRead => return End::Drained,
                // CPython's own read then raises the right error, or returns b"" after a close_notify.
                Outcome::Closed | Outcome::Failed => return self.repeat_read(),
            }
        }
    }

    /// Repeats the read with CPython's method, to find out how the data has ended. This releases the GIL, and may run
    /// finalizers.
    #[cold]
    fn repeat_read(&self) -> End {
        let Some(raw) = self.raw.get() else { return End::Closed };
        let py = raw.py();
        match self.io.call_openssl(|| raw.bind(py).call_method1(Fallible("read"), (1,))) {
            // The result is b"": libssl has just reported that there is no more data.
            Ok(_) => End::Closed,
            Err(error) if is_again(py, &error) => End::Drained,
            Err(error) => End::Failed(Ref::from(error.into_value(py).into_bound(py).into_any())),
        }
    }

    /// Encrypts `data` into the output.
    pub(super) fn encrypt(&self, data: &[u8]) -> Result<Wrote, Raised> {
        self.io.reserve_output(data.len()).map_err(|error| raise_os_error(&error))?;
        self.library.clear_errors();
        // SAFETY: `raw` owns the SSL, and this thread is in a section of it.
        match self.io.call_openssl(|| self.exclusively(|| unsafe { self.library.write(self.ssl, data) })) {
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
