//! How the clients of a server are counted. [`clients`](super::clients) says why.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::capi::{Ref, Slot};

/// How many transports there are that a server's list does not name. Each of them holds the list.
#[pyclass(module = "wakeloop._core", subclass, frozen)]
#[derive(Debug, Default)]
pub(crate) struct ClientCount {
    /// Ordering: Relaxed everywhere. Used with the interpreter attached.
    counted: AtomicUsize,
}

impl ClientCount {
    pub(super) fn get(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }
}

/// The list in which a transport is counted. Dropping it ends that.
#[derive(Debug, Default)]
pub(super) struct Counted(Slot);

impl Counted {
    /// The list, if there is one.
    pub(super) fn slot(&self) -> &Slot {
        &self.0
    }

    pub(super) fn enter(&self, clients: Bound<'_, ClientCount>) {
        clients.get().counted.fetch_add(1, Ordering::Relaxed);
        self.0.set(Some(Ref::from(clients.into_any())));
    }

    /// The transport is no longer counted. True if it was.
    pub(super) fn leave(&self) -> bool {
        let Some(clients) = self.0.take() else { return false };
        // SAFETY: `enter` alone fills the slot.
        let list = unsafe { clients.bind(clients.py()).cast_into_unchecked::<ClientCount>() };
        list.get().counted.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

impl Drop for Counted {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.leave();
        }
    }
}
