//! Finds the runtime that the current thread belongs to.
//!
//! `executor::current_worker` finds the worker of a worker thread. Threads in `block_on` and in the blocking
//! pool keep a handle in `entered`, and so does any thread that enters a runtime, possibly inside another runtime's
//! task. A worker hides what was entered before it started, so an entry there is always more recent than the
//! worker.

use std::ptr;
use std::sync::Arc;

use super::entered::entered;
use super::executor::{Shared, current_worker};

/// Calls `f` with the runtime of the current thread, if it has one.
pub(super) fn try_with<R>(f: impl FnOnce(&Arc<Shared>) -> R) -> Option<R> {
    // SAFETY: the pointer is null, except while an `Entered` further up this stack borrows the `Arc`.
    if let Some(shared) = unsafe { entered().as_ref() } {
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
