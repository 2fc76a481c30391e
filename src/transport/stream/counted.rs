//! Counts the clients of a server; see [`clients`](super::clients).

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::capi::{Ref, Slot};

/// The number of a server's transports that are not in its set. Each of them has a reference to the set.
#[pyclass(module = "wakeloop._core", subclass, frozen)]
#[derive(Debug, Default)]
pub(crate) struct ClientCount {
    /// Ordering: Relaxed everywhere. It is a number alone, and transports of several loops may count in it.
    counted: AtomicUsize,
}

impl ClientCount {
    pub(super) fn get(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }
}

/// The set in which a transport is counted. Dropping this ends the count.
#[derive(Debug, Default)]
pub(super) struct Counted(Slot);

impl Counted {
    /// The set, if there is one.
    pub(super) fn slot(&self) -> &Slot {
        &self.0
    }

    pub(super) fn enter(&self, clients: Bound<'_, ClientCount>) {
        clients.get().counted.fetch_add(1, Ordering::Relaxed);
        self.0.set(Some(Ref::from(clients.into_any())));
    }

    /// Stops counting the transport. True if it was counted.
    pub(super) fn leave(&self) -> bool {
        let Some(clients) = self.0.take() else { return false };
        // SAFETY: only `enter` fills the slot.
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
