//! Handling wakers, which are anybody's: to wake, to clone or to drop one may run any code, and that may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakes them all. One that panics keeps no other from being woken, nor does it end whoever calls this.
pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Puts `waker` into its slot, if another is there. That one is for the caller to drop, when it holds no lock.
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
