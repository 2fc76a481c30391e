//! The StopIteration that carries a result out of an `await`.
//!
//! To make, fill, read and free such an exception can cost more than the read whose result it carries. The
//! interpreter's `SEND` instruction takes the value out of it and drops it at once, so one object serves all these
//! awaits. It is used again only while nobody can have seen it:
//!
//! - The awaiting frame holds the only reference to the awaitable, and did not get it by calling `__await__`. Python
//!   code that steps the awaitable with `next` or `send`, and catches what it raises, gets an exception of its own.
//! - Nothing is attached to it: no reference but ours, no traceback, context, cause, notes or attributes. A tracer
//!   that is shown the exception may keep it. Then it is not used again.
//! - It carries nothing but bytes and ints, and only until the awaitable is freed, which is just after the value was
//!   taken. Other values could own a descriptor, or lead back to the awaitable.

use pyo3::ffi;

use crate::capi::error::{Raised, raise};
use crate::capi::exceptions::Exception;
use crate::capi::object::{Borrowed, Ref, Slot};
use crate::capi::section::REUSES;

struct Stop(Slot);
// SAFETY: touched only with the GIL held; without a GIL, not at all.
unsafe impl Sync for Stop {}
static STOP: Stop = Stop(Slot::empty());

/// Ends an await of `awaitable` with this value: `tp_iternext` returns null with the exception that is set, or with
/// none, which stands for a StopIteration without a value. [`forget_value`] must be called when the awaitable is freed.
#[inline(always)]
pub(crate) fn end_await(awaitable: Borrowed<'_>, by_hand: bool, value: Ref) -> Raised {
    if value.is_none() {
        return Raised;
    }
    if REUSES && !by_hand && awaitable.is_unique() && (value.is_exact_bytes() || value.is_exact_int()) {
        raise_shared(value)
    } else {
        raise_stop(value)
    }
}

/// Raises a StopIteration that Python code may catch and keep.
pub(crate) fn raise_stop(value: Ref) -> Raised {
    let stop = if value.is_none() { Exception::StopIteration.class().call(&[]) } else { new_stop(&value) };
    if let Ok(stop) = stop {
        // A coroutine's StopIteration has a context until 3.13, and none since.
        #[cfg(Py_3_14)]
        let Raised = raise(stop);
        // SAFETY: a live exception.
        #[cfg(not(Py_3_14))]
        unsafe {
            ffi::PyErr_SetObject(ffi::PyExc_StopIteration, stop.as_ptr());
        }
    }
    Raised
}

fn new_stop(value: &Ref) -> Result<Ref, Raised> {
    Exception::StopIteration.class().call_with([value.borrow()])
}

#[inline(always)]
fn raise_shared(value: Ref) -> Raised {
    let stop = STOP.0.as_ptr();
    if is_unseen(stop) {
        let old = exchange(stop, value);
        // SAFETY: the exception that the slot owns.
        let raised = raise(unsafe { Ref::from_borrowed(stop) });
        drop(old);
        raised
    } else if let Ok(stop) = new_stop(&value) {
        STOP.0.set(Some(stop.clone_ref()));
        raise(stop)
    } else {
        Raised
    }
}

/// Drops the value that the shared exception carries. Called when an awaitable is freed.
#[inline(always)]
pub(crate) fn forget_value() {
    if !REUSES {
        return;
    }
    let stop = STOP.0.as_ptr();
    // SAFETY: null, or an exception that the slot owns; the layout is public.
    if stop.is_null() || unsafe { (*stop.cast::<ffi::PyStopIterationObject>()).value == ffi::Py_None() } {
        return;
    }
    if is_unseen(stop) {
        drop(exchange(stop, Ref::none()));
    } else {
        STOP.0.clear();
    }
}

/// True of the shared exception if nobody else refers to it and nothing is attached to it. False of null.
#[inline(always)]
fn is_unseen(stop: *mut ffi::PyObject) -> bool {
    if stop.is_null() {
        return false;
    }
    // SAFETY: an instance of exactly StopIteration, made by `new_stop`; its layout is public. `args` is never null, and
    // a tuple of one item as long as nobody has seen the exception.
    unsafe {
        let fields = &*stop.cast::<ffi::PyStopIterationObject>();
        let attached = fields.dict as usize
            | fields.notes as usize
            | fields.traceback as usize
            | fields.context as usize
            | fields.cause as usize;
        ffi::Py_REFCNT(stop) == 1 && attached == 0 && ffi::Py_REFCNT(fields.args) == 1
    }
}

/// Puts another value into the exception, and returns the two references to the old one.
#[inline(always)]
fn exchange(stop: *mut ffi::PyObject, value: Ref) -> [Option<Ref>; 2] {
    // SAFETY: `is_unseen` has found the exception and its tuple to be ours alone.
    unsafe {
        let fields = &mut *stop.cast::<ffi::PyStopIterationObject>();
        let item = ffi::PyTuple_GET_ITEM(fields.args, 0);
        ffi::PyTuple_SET_ITEM(fields.args, 0, value.clone_ref().into_ptr());
        #[cfg(Py_3_14)]
        {
            // Tuples cache their hash since 3.14.
            (*fields.args.cast::<ffi::PyTupleObject>()).ob_hash = -1;
        }
        [Ref::from_owned(item), Ref::from_owned(std::mem::replace(&mut fields.value, value.into_ptr()))]
    }
}
