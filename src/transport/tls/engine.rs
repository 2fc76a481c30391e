//! The two ways to encrypt and decrypt.
//!
//! **Native**: SSL_read_ex and SSL_write_ex of the very libssl that `_ssl` uses, on the `SSL` that CPython made
//! for the connection, over an [`Io`] of ours. **Object**: the methods of CPython's SSLObject over its
//! MemoryBIOs, cached. The first is chosen if a self-test says once per process that it works, and if this
//! connection's `SSL` was seen being made, belongs to its SSLObject, and nobody has put code of his own
//! between: an overridden `read` or `write`, or a message callback (whose exceptions would surface too late).
//!
//! Errors are CPython's either way: when libssl reports one, the SSLObject is asked to do the same, and raises.

use std::mem::MaybeUninit;

use pyo3::prelude::*;

use super::choice::is_again;
use super::native::Native;
use super::object::Object;
use crate::capi::call::call0;
use crate::capi::error::{raise, restore};
use crate::capi::{Raised, Ref, Slot};

/// The largest plaintext of one TLS record.
pub(super) const RECORD: usize = 16 * 1024;

/// Who does the cryptography of one connection.
#[derive(Debug)]
pub(crate) enum Engine {
    Native(Native),
    Object(Object),
}

/// Memory that libssl decrypts into: its first `filled` bytes are plaintext.
#[derive(Debug)]
pub(super) struct Room<'a> {
    pub(super) memory: &'a mut [MaybeUninit<u8>],
    pub(super) filled: usize,
}

impl Room<'_> {
    pub(super) fn new(memory: &mut [MaybeUninit<u8>]) -> Room<'_> {
        Room { memory, filled: 0 }
    }

    /// Decrypts into what room a vector has left.
    #[inline(always)]
    pub(super) fn in_vector(plain: &mut Vec<u8>, decrypt: impl FnOnce(&mut Room<'_>) -> End) -> End {
        let mut room = Room::new(plain.spare_capacity_mut());
        let end = decrypt(&mut room);
        let filled = room.filled;
        // SAFETY: that much of the spare capacity was filled.
        unsafe { plain.set_len(plain.len() + filled) };
        end
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
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

impl Engine {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Engine::Native(_) => "native",
            Engine::Object(_) => "sslobject",
        }
    }

    pub(super) fn input_size(&self) -> usize {
        match self {
            Engine::Native(native) => native.io.input_size(),
            Engine::Object(object) => object.pending(&object.incoming),
        }
    }

    pub(super) fn output_size(&self) -> usize {
        match self {
            Engine::Native(native) => native.io.output_size(),
            Engine::Object(object) => object.pending(&object.outgoing),
        }
    }

    /// Keeps ciphertext for the next read.
    pub(super) fn feed(&self, data: &[u8]) -> Result<(), Raised> {
        match self {
            Engine::Native(native) => {
                native.io.keep(data);
                Ok(())
            }
            Engine::Object(object) => object.feed(data),
        }
    }

    /// Decrypts into the room of `plain` until nothing is left or the room is used up.
    pub(super) fn decrypt(&self, plain: &mut Vec<u8>) -> Result<End, Raised> {
        match self {
            Engine::Native(native) => Ok(Room::in_vector(plain, |room| native.decrypt(room))),
            Engine::Object(object) => object.decrypt(plain),
        }
    }

    /// Takes the ciphertext out that waits to be sent: there is some.
    pub(super) fn take_output(&self) -> Result<Output, Raised> {
        match self {
            Engine::Native(native) => Ok(Output::Vector(native.io.exchange_output(Vec::new(), false))),
            Engine::Object(object) => match object.drain.get() {
                Some(drain) => call0(&drain).map(Output::Bytes),
                None => Ok(Output::Vector(Vec::new())),
            },
        }
    }

    /// The connection is lost.
    pub(super) fn clear(&self) {
        if let Engine::Native(native) = self {
            native.io.clear();
        }
    }

    /// The handshake is over.
    pub(super) fn established(&self) {
        if let Engine::Native(native) = self {
            // SAFETY: `raw` owns the SSL; see `Native::decrypt`.
            unsafe { native.library.established(native.ssl, &native.io) };
        }
    }

    /// Every object that is held, for the collector.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        let (native, object) = match self {
            Engine::Native(native) => (Some(&native.raw), None),
            Engine::Object(object) => (None, Some(object.slots())),
        };
        native.into_iter().chain(object.into_iter().flatten())
    }
}

/// Ciphertext on its way out.
#[derive(Debug)]
pub(super) enum Output {
    Vector(Vec<u8>),
    /// A `bytes` object.
    Bytes(Ref),
}

/// What came of CPython's `write`.
pub(super) fn wrote(py: Python<'_>, written: PyResult<Bound<'_, PyAny>>) -> Result<Wrote, Raised> {
    match written.and_then(|count| count.extract()) {
        Ok(count) => Ok(Wrote::Bytes(count)),
        Err(error) if is_again(py, &error) => Ok(Wrote::WantRead),
        Err(error) => Err(restore(py, error)),
    }
}

/// Fails with the exception of a read.
pub(super) fn fail(exception: Ref) -> Raised {
    raise(exception);
    Raised
}
