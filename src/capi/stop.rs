//! The StopIteration that carries results out of an `await`.
//!
//! Such an exception is made, filled, looked into and dropped for each result that is not `None`, which costs more than
//! many a read. The interpreter takes the value out of it and lets it go at once, so that one object serves them all.

use std::ptr::null_mut;

use pyo3::ffi;

use super::error::raise;
use super::object::{Ref, Slot};

struct Stop(Slot);
// SAFETY: touched only with the GIL held.
unsafe impl Sync for Stop {}
static STOP: Stop = Stop(Slot::empty());

/// Ends an `await` with this result: what its `tp_iternext` returns. [`forget_value`] has to come when the interpreter
/// has taken it out.
///
/// # Safety
/// `result` is an owned reference.
#[inline(always)]
pub(crate) unsafe fn end_await(result: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the caller's word.
    unsafe {
        if result == ffi::Py_None() {
            // No exception is a StopIteration of `None`.
            drop(Ref::from_owned(result));
        } else if ffi::PyBytes_CheckExact(result) != 0 || ffi::PyLong_CheckExact(result) != 0 {
            if let Some(value) = Ref::from_owned(result) {
                stop_with(value);
            }
        } else {
            // What may own a descriptor, or lead anywhere, is not kept a moment longer than asyncio keeps it.
            return raise_stop(result);
        }
    }
    null_mut()
}

/// The StopIteration that ends a coroutine which is driven by `send`; null.
///
/// # Safety
/// `result` is an owned reference or null.
pub(crate) unsafe fn raise_stop(result: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the caller's word; the exception takes a reference of its own.
    unsafe {
        let value = Ref::from_owned(result).unwrap_or_else(Ref::none);
        let stop = ffi::PyObject_CallOneArg(ffi::PyExc_StopIteration, value.as_ptr());
        if let Some(stop) = Ref::from_owned(stop) {
            raise(stop);
        }
    }
    null_mut()
}

#[inline(always)]
fn stop_with(value: Ref) {
    let held = STOP.0.as_ptr();
    // SAFETY: null or a StopIteration that the slot owns.
    if held.is_null() || !unsafe { is_unseen(held) } {
        // None so far, or somebody has seen it.
        // SAFETY: an owned reference or null with an error.
        match unsafe { Ref::from_owned(ffi::PyObject_CallNoArgs(ffi::PyExc_StopIteration)) } {
            Some(fresh) => STOP.0.set(Some(fresh)),
            None => return,
        }
    }
    let Some(stop) = STOP.0.get() else { return };
    // SAFETY: an instance of exactly StopIteration, whose layout is public; the old value is dropped last.
    let old = unsafe {
        let place = &raw mut (*stop.as_ptr().cast::<ffi::PyStopIterationObject>()).value;
        Ref::from_owned(place.replace(value.into_ptr()))
    };
    raise(stop);
    drop(old);
}

/// Has no Python code caught the exception? What has been caught has a traceback, which leads to frames and all that
/// is in them, and which grows each time.
///
/// # Safety
/// `stop` is a live StopIteration.
#[inline(always)]
unsafe fn is_unseen(stop: *mut ffi::PyObject) -> bool {
    // SAFETY: the caller's word; the layout is public.
    unsafe {
        let fields = &*stop.cast::<ffi::PyStopIterationObject>();
        ffi::Py_REFCNT(stop) == 1 && fields.traceback.is_null() && fields.context.is_null()
    }
}

/// Lets go of what was carried last. Called when a call ends its life, which is just after its result
/// was taken.
#[inline(always)]
pub(crate) fn forget_value() {
    let held = STOP.0.as_ptr();
    // SAFETY: null or a StopIteration that the slot owns; the value is dropped last.
    unsafe {
        if held.is_null() {
            return;
        }
        if !is_unseen(held) {
            STOP.0.clear();
            return;
        }
        let place = &raw mut (*held.cast::<ffi::PyStopIterationObject>()).value;
        let none = Ref::none().into_ptr();
        drop(Ref::from_owned(place.replace(none)));
    }
}
