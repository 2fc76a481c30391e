//! The runtime that the current thread has entered, for `context`.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use super::executor::Shared;
use super::shim::thread_cell;

thread_cell! {
    static ENTERED: *const Arc<Shared> = ptr::null();
}

/// While this value lives, the thread belongs to a runtime.
pub(super) struct Entered<'a> {
    outer: *const Arc<Shared>,
    shared: PhantomData<&'a Arc<Shared>>,
}

/// The guard must be dropped (not forgotten), in the reverse order of entering.
pub(super) fn enter(shared: &Arc<Shared>) -> Entered<'_> {
    Entered { outer: ENTERED.replace(shared), shared: PhantomData }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        ENTERED.set(self.outer);
    }
}

/// Hides what was entered so far, because a worker begins on this thread. Drop the guard as for `enter`.
pub(super) fn hide() -> Entered<'static> {
    Entered { outer: ENTERED.replace(ptr::null()), shared: PhantomData }
}

/// The runtime that was entered last. Null if none was, or if a worker hides it. Valid while an [`Entered`] further up
/// this stack borrows it.
#[inline(always)]
pub(super) fn entered() -> *const Arc<Shared> {
    ENTERED.get()
}
