//! Handles wakers. They are foreign code: waking, cloning or dropping one may run anything, and may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes the waker, if there is one. Call it when no lock is held.
#[inline]
pub(super) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Wakes them all. If one panics, the others are still woken, and the caller continues.
pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Stores `waker` in its slot if the slot has another. The caller drops the returned one when it holds no lock.
#[must_use]
pub(super) fn store(slot: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match slot {
        Some(old) => renew(old, waker),
        none => none.replace(waker.clone()),
    }
}

/// As [`store`], for a slot that is never empty.
#[must_use]
pub(super) fn renew(old: &mut Waker, waker: &Waker) -> Option<Waker> {
    (!old.will_wake(waker)).then(|| std::mem::replace(old, waker.clone()))
}
