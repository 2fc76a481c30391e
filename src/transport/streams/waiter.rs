//! The future that a read waits for: how new data wakes it, and what it has when the read goes on.

use pyo3::ffi;

use crate::capi::call::method;
use crate::capi::error::{raise, raise_message, take_exception};
use crate::capi::future::{is_asyncios, is_done, result, set_result};
use crate::capi::imports::imports;
use crate::capi::{Raised, Ref};

/// `if not waiter.cancelled(): waiter.set_result(None)`.
#[inline(always)]
pub(crate) fn wake(waiter: &Ref) -> Result<(), Raised> {
    let names = imports();
    if is_asyncios(waiter) {
        // asyncio's own future says so by itself when it is done already.
        return set_result(waiter, &Ref::none()).or_else(|Raised| unless_cancelled(waiter));
    }
    let cancelled = method(waiter, names.cancelled.as_ptr(), &[])?;
    // SAFETY: live objects; -1 with an error set means failure.
    unsafe {
        match ffi::PyObject_IsTrue(cancelled.as_ptr()) {
            0 => set_result(waiter, &Ref::none()),
            1 => Ok(()),
            _ => Err(Raised),
        }
    }
}

/// The error of a `set_result`, unless the future was cancelled.
#[cold]
fn unless_cancelled(waiter: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    let cancelled = method(waiter, imports().cancelled.as_ptr(), &[])?;
    // SAFETY: `cancelled()` of such a future returns a bool.
    if cancelled.as_ptr() == unsafe { ffi::Py_True() } {
        return Ok(());
    }
    raise(error);
    Err(Raised)
}

/// What the end of an `await` does: `future.result()`, or a complaint if it is not done.
#[inline(always)]
pub(super) fn result_of(future: &Ref) -> Result<(), Raised> {
    if is_asyncios(future) {
        // asyncio's own future says so by itself when it is not done.
        return result(future).map(drop).or_else(|Raised| unless_pending(future));
    }
    if !is_done(future)? {
        complain();
        return Err(Raised);
    }
    result(future).map(drop)
}

/// The error of a `result()`, or the complaint of an `await` about a future that is not done.
#[cold]
fn unless_pending(future: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    if is_done(future)? {
        raise(error);
    } else {
        complain();
    }
    Err(Raised)
}

/// What asyncio's future says of an `await` that is resumed too early.
#[cold]
fn complain() {
    // SAFETY: reading a static of the interpreter.
    raise_message(unsafe { ffi::PyExc_RuntimeError }, "await wasn't used with future");
}
