//! The Python object that holds the descriptor of a pipe.

use std::os::fd::RawFd;

use pyo3::prelude::*;

use crate::capi::Slot;
use crate::compat::descriptor;
use crate::transport::base::opening::Parts;
use crate::transport::base::transport::TransportBase;

/// The raw file or the socket that holds the descriptor. Empty if the pipe is an object of an unknown class.
#[derive(Debug)]
pub(super) struct FdHolder(Slot);

impl FdHolder {
    pub(super) fn of(py: Python<'_>, parts: &Parts) -> FdHolder {
        let holder = parts.owner.as_ref().and_then(|owner| descriptor::holder(&owner.bind(py), parts.fd));
        FdHolder(Slot::new(holder))
    }

    /// The descriptor; -1 once the program has closed the file. For an object of an unknown class it is the number that
    /// the transport began with, as in asyncio.
    #[inline(always)]
    pub(super) fn descriptor(&self, base: &TransportBase) -> RawFd {
        // SAFETY: the slot is empty, or has what `descriptor::holder` has returned.
        if self.0.is_empty() { base.fd.get() } else { unsafe { descriptor::of_holder(self.0.as_ptr()) } }
    }

    pub(super) fn slot(&self) -> &Slot {
        &self.0
    }
}
