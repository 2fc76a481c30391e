//! Which runtime the current thread belongs to.
//!
//! Workers are found by `executor::current_worker`; threads in `block_on` and in the blocking pool keep a handle here.

use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;

use super::executor::{Shared, current_worker};

thread_local! {
    static OUTSIDE: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// While this lives, the thread belongs to a runtime.
pub(super) struct Entered {
    outer: Option<Arc<Shared>>,
}

pub(super) fn enter(shared: Arc<Shared>) -> Entered {
    Entered { outer: OUTSIDE.with_borrow_mut(|current| current.replace(shared)) }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let inner = OUTSIDE.with_borrow_mut(|current| std::mem::replace(current, self.outer.take()));
        drop(inner);
    }
}

/// Calls `f` with the runtime of the current thread, if it has one.
pub(super) fn try_with<R>(f: impl FnOnce(&Arc<Shared>) -> R) -> Option<R> {
    // SAFETY: the reference ends with this call, which the worker is in the middle of.
    if let Some(worker) = unsafe { current_worker(ptr::null()) } {
        return Some(f(worker.shared()));
    }
    // Cloned, as `f` may come back here or enter another runtime.
    let shared = OUTSIDE.try_with(|current| current.borrow().clone()).ok()??;
    Some(f(&shared))
}

/// As [`try_with`].
///
/// # Panics
/// If the thread belongs to no runtime.
pub(super) fn with<R>(f: impl FnOnce(&Arc<Shared>) -> R) -> R {
    match try_with(f) {
        Some(result) => result,
        None => panic!("this needs a wakeloop runtime: call it in a task or inside block_on"),
    }
}
