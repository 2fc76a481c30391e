//! Where Python keeps the descriptor of a pipe.

use std::os::fd::RawFd;

use pyo3::prelude::*;

use crate::capi::Slot;
use crate::compat::descriptor;
use crate::transport::base::opening::Parts;
use crate::transport::base::transport::TransportBase;

/// The file without buffers, or the socket, that has the descriptor; empty if that is not known.
#[derive(Debug)]
pub(super) struct Keeper(Slot);

impl Keeper {
    pub(super) fn of(py: Python<'_>, parts: &Parts) -> Keeper {
        let keeper = parts.owner.as_ref().and_then(|owner| descriptor::keeper(&owner.bind(py), parts.fd));
        Keeper(Slot::new(keeper))
    }

    /// The descriptor: -1 once the program has closed the file. Without a keeper it is what it was, as in asyncio.
    #[inline(always)]
    pub(super) fn descriptor(&self, base: &TransportBase) -> RawFd {
        // SAFETY: `of` puts there what `descriptor::keeper` has found, or nothing.
        if self.0.is_empty() { base.fd.get() } else { unsafe { descriptor::of_keeper(self.0.as_ptr()) } }
    }

    pub(super) fn slot(&self) -> &Slot {
        &self.0
    }
}
