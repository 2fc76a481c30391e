//! Finds the runtime that the current thread belongs to.
//!
//! `executor::current_worker` finds the worker of a worker thread. Threads in `block_on` and in the blocking
//! pool keep a handle here, and so does any thread that enters a runtime, possibly inside another runtime's
//! task. A worker hides what was entered before it started, so an entry here is always more recent than the
//! worker.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use super::executor::{Shared, current_worker};
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

/// Calls `f` with the runtime of the current thread, if it has one.
pub(super) fn try_with<R>(f: impl FnOnce(&Arc<Shared>) -> R) -> Option<R> {
    // SAFETY: the pointer is null, except while an `Entered` further up this stack borrows the `Arc`.
    if let Some(shared) = unsafe { ENTERED.get().as_ref() } {
        return Some(f(shared));
    }
    // SAFETY: the reference is given up before this call returns to the worker's loop.
    unsafe { current_worker(ptr::null()) }.map(|worker| f(worker.shared()))
}

/// As [`try_with`].
///
/// # Panics
/// If the thread belongs to no runtime.
pub(super) fn with<R>(f: impl FnOnce(&Arc<Shared>) -> R) -> R {
    match try_with(f) {
        Some(result) => result,
        None => missing(),
    }
}

/// Panics because the thread belongs to no runtime.
#[cold]
pub(super) fn missing() -> ! {
    panic!("this needs a wakeloop runtime: call it in a task or inside block_on")
}
