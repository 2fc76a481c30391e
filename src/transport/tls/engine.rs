//! The two engines that encrypt and decrypt.
//!
//! - **Native**: calls SSL_read_ex and SSL_write_ex of the libssl that `_ssl` uses, on the `SSL` that CPython has
//!   created for the connection, with a memory BIO of ours ([`Io`](crate::libssl::Io)).
//! - **Object**: calls the methods of CPython's SSLObject with its MemoryBIOs.
//!
//! The native engine is used if all of this is true:
//! - A self-test, once per process, has found that it works.
//! - The connection's `SSL` was found while it was created, and belongs to its SSLObject.
//! - No subclass overrides `read` or `write`.
//! - There is no message callback. The native engine could raise its exceptions only too late.
//!
//! With both engines, errors are CPython's: when libssl reports an error, the SSLObject is called to do the same, and
//! raises.

use super::native::Native;
use super::object::{Object, pending};
use super::records::{End, Room, Wrote};
use crate::capi::buffer::bytes_from;
use crate::capi::call::call0;
use crate::capi::{Raised, Ref, Slot};
use crate::kernel::core::Core;

/// The engine of one connection.
#[derive(Debug)]
pub(crate) enum Engine {
    Native(Native),
    Object(Object),
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
            Engine::Object(object) => pending(&object.incoming),
        }
    }

    pub(super) fn output_size(&self) -> usize {
        match self {
            Engine::Native(native) => native.io.output_size(),
            Engine::Object(object) => pending(&object.outgoing),
        }
    }

    /// Stores ciphertext for the next read.
    pub(super) fn feed(&self, data: &[u8]) -> Result<(), Raised> {
        match self {
            Engine::Native(native) => {
                native.io.append(data);
                Ok(())
            }
            Engine::Object(object) => object.feed(data),
        }
    }

    /// Decrypts and appends to `plain`, until all input is read or the capacity of `plain` is used up.
    pub(super) fn decrypt(&self, plain: &mut Vec<u8>) -> Result<End, Raised> {
        match self {
            Engine::Native(native) => Ok(Room::in_vector(plain, |room| native.decrypt(room))),
            Engine::Object(object) => object.decrypt(plain),
        }
    }

    /// Encrypts `data`. If there is an `object`, `data` is its whole content.
    pub(super) fn encrypt(&self, data: &[u8], object: Option<&Ref>) -> Result<Wrote, Raised> {
        match (self, object) {
            (Engine::Native(native), _) => native.encrypt(data),
            (Engine::Object(methods), Some(object)) => methods.encrypt(object),
            (Engine::Object(methods), None) => methods.encrypt(&bytes_from(data)?),
        }
    }

    /// Removes the ciphertext that waits to be sent, and passes it to `send`. Returns a scratch vector to the loop.
    pub(super) fn send_output(
        &self,
        core: Option<&Core>,
        send: impl FnOnce(&[u8]) -> Result<(), Raised>,
    ) -> Result<(), Raised> {
        match self {
            Engine::Native(native) => {
                let output = native.io.exchange_output(Vec::new(), false);
                send(&output)?;
                if let Some(core) = core {
                    core.scratch.give_back(output);
                }
                Ok(())
            }
            Engine::Object(object) => match object.drain.get() {
                Some(drain) => send(call0(&drain)?.exact_bytes().unwrap_or_default()),
                None => Ok(()),
            },
        }
    }

    /// The references, for the garbage collector.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        let (native, object) = match self {
            Engine::Native(native) => (Some(&native.raw), None),
            Engine::Object(object) => (None, Some(object.slots())),
        };
        native.into_iter().chain(object.into_iter().flatten())
    }
}
