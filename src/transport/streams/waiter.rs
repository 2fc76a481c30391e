//! The future for which a read waits: completes it when data arrives, and reads its result when the read resumes.

use crate::capi::error::{raise, take_exception};
use crate::capi::future::{is_asyncios, is_done, result, set_result};
use crate::capi::imports::imports;
use crate::capi::inspect::boolean;
use crate::capi::{Exception, Raised, Ref};

/// `if not waiter.cancelled(): waiter.set_result(None)`.
#[inline(always)]
pub(crate) fn wake(waiter: &Ref) -> Result<(), Raised> {
    if is_asyncios(waiter) {
        // asyncio's own future raises if it is done, so `cancelled()` is called only then.
        return set_result(waiter, &Ref::none()).or_else(|Raised| unless_cancelled(waiter));
    }
    match waiter.call_method(&imports().cancelled, &[])?.is_true()? {
        true => Ok(()),
        false => set_result(waiter, &Ref::none()),
    }
}

/// Raises the error of `set_result`, unless the future was cancelled.
#[cold]
fn unless_cancelled(waiter: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    if waiter.call_method(&imports().cancelled, &[])?.is(&boolean(true)) {
        return Ok(());
    }
    Err(raise(error))
}

/// The end of `await future`: `future.result()`, or a RuntimeError if the future is not done.
#[inline(always)]
pub(super) fn result_of(future: &Ref) -> Result<(), Raised> {
    if is_asyncios(future) {
        // asyncio's own future raises if it is not done, so `done()` is called only then.
        return result(future).map(drop).or_else(|Raised| unless_pending(future));
    }
    if !is_done(future)? {
        return Err(too_early());
    }
    result(future).map(drop)
}

/// Raises the error of `result()`, or a RuntimeError if the future is not done.
#[cold]
fn unless_pending(future: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    if !is_done(future)? {
        return Err(too_early());
    }
    Err(raise(error))
}

/// The RuntimeError of asyncio's future for an `await` that is resumed before the future is done.
#[cold]
fn too_early() -> Raised {
    Exception::RuntimeError.raise("await wasn't used with future")
}
