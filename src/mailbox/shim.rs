//! Atomics and locks, from the standard library or from a model checker. The runtime's `shim` has the same for more
//! types, but stands on a higher floor.

cfg_select! {
    wakeloop_loom => {
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8};
        pub(super) use loom::sync::{Mutex, MutexGuard};
    }
    wakeloop_shuttle => {
        pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU8};
        pub(super) use shuttle::sync::{Mutex, MutexGuard};
    }
    _ => {
        pub(super) use std::sync::atomic::{AtomicBool, AtomicU8};
        pub(super) use std::sync::{Mutex, MutexGuard};
    }
}

/// Locks a mutex, even if it is poisoned: pushing to a Vec cannot panic half-way.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    crate::poison::unpoisoned(mutex.lock())
}

#[cfg(test)]
#[path = "../../tests/models/shim.rs"]
pub(super) mod model;
