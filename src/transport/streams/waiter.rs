//! The future that a read waits for: how new data wakes it, and what it has when the read goes on.

use crate::capi::error::{raise, take_exception};
use crate::capi::future::{is_asyncios, is_done, result, set_result};
use crate::capi::imports::imports;
use crate::capi::inspect::boolean;
use crate::capi::{Exception, Raised, Ref};

/// `if not waiter.cancelled(): waiter.set_result(None)`.
#[inline(always)]
pub(crate) fn wake(waiter: &Ref) -> Result<(), Raised> {
    if is_asyncios(waiter) {
        // asyncio's own future says so by itself when it is done already.
        return set_result(waiter, &Ref::none()).or_else(|Raised| unless_cancelled(waiter));
    }
    match waiter.call_method(&imports().cancelled, &[])?.is_true()? {
        true => Ok(()),
        false => set_result(waiter, &Ref::none()),
    }
}

/// The error of a `set_result`, unless the future was cancelled.
#[cold]
fn unless_cancelled(waiter: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    if waiter.call_method(&imports().cancelled, &[])?.is(&boolean(true)) {
        return Ok(());
    }
    Err(raise(error))
}

/// What the end of an `await` does: `future.result()`, or a complaint if it is not done.
#[inline(always)]
pub(super) fn result_of(future: &Ref) -> Result<(), Raised> {
    if is_asyncios(future) {
        // asyncio's own future says so by itself when it is not done.
        return result(future).map(drop).or_else(|Raised| unless_pending(future));
    }
    if !is_done(future)? {
        return Err(too_early());
    }
    result(future).map(drop)
}

/// The error of a `result()`, or the complaint of an `await` about a future that is not done.
#[cold]
fn unless_pending(future: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    if !is_done(future)? {
        return Err(too_early());
    }
    Err(raise(error))
}

/// What asyncio's future raises for an `await` that is resumed too early.
#[cold]
fn too_early() -> Raised {
    Exception::RuntimeError.raise("await wasn't used with future")
}
