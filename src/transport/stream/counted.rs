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
#[derive(Debug)]
pub(super) struct Counted(Slot);

impl Counted {
    pub(super) const fn empty() -> Counted {
        Counted(Slot::empty())
    }

    /// The list, if there is one.
    pub(super) fn slot(&self) -> &Slot {
        &self.0
    }

    pub(super) fn enter(&self, clients: Ref) {
        count_of(&clients, |count| count.fetch_add(1, Ordering::Relaxed));
        self.0.set(Some(clients));
    }

    /// The transport is no longer counted. True if it was.
    pub(super) fn leave(&self) -> bool {
        let Some(clients) = self.0.take() else { return false };
        count_of(&clients, |count| count.fetch_sub(1, Ordering::Relaxed));
        true
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.leave();
    }
}

fn count_of<T>(clients: &Ref, change: impl FnOnce(&AtomicUsize) -> T) -> Option<T> {
    Some(change(&clients.bind(clients.py()).cast::<ClientCount>().ok()?.get().counted))
}
