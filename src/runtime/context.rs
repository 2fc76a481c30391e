//! Which runtime the current thread belongs to.
//!
//! Workers are found by `executor::current_worker`; threads in `block_on` and in the blocking pool keep a handle here.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use super::executor::{Shared, current_worker};
use super::shim::thread_cell;

thread_cell! {
    static OUTSIDE: *const Arc<Shared> = ptr::null();
}

/// While this lives, the thread belongs to a runtime.
pub(super) struct Entered<'a> {
    outer: *const Arc<Shared>,
    shared: PhantomData<&'a Arc<Shared>>,
}

/// The guard must be dropped, not forgotten, and in the reverse order of entering.
pub(super) fn enter(shared: &Arc<Shared>) -> Entered<'_> {
    Entered { outer: OUTSIDE.replace(shared), shared: PhantomData }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        OUTSIDE.set(self.outer);
    }
}

/// Calls `f` with the runtime of the current thread, if it has one.
pub(super) fn try_with<R>(f: impl FnOnce(&Arc<Shared>) -> R) -> Option<R> {
    // SAFETY: the reference ends with this call, which the worker is in the middle of.
    if let Some(worker) = unsafe { current_worker(ptr::null()) } {
        return Some(f(worker.shared()));
    }
    // SAFETY: not null only while an `Entered` further out on this stack borrows the `Arc`.
    unsafe { OUTSIDE.get().as_ref() }.map(f)
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

/// What happens where a runtime is needed and there is none.
#[cold]
pub(super) fn missing() -> ! {
    panic!("this needs a wakeloop runtime: call it in a task or inside block_on")
}
