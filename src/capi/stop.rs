//! The StopIteration that carries a result out of an `await`.
//!
//! To make, fill, read and free such an exception costs more than many a read. The interpreter's `SEND` instruction
//! takes the value out of it and drops it at once, so one object serves all these awaits. It is used again only while
//! nobody can have seen it:
//!
//! - The awaiting frame holds the only reference to the awaitable, and did not get it by calling `__await__`. Python
//!   code that steps the awaitable with `next` or `send`, and catches what it raises, gets an exception of its own.
//! - Nothing is attached to it: no reference but ours, no traceback, context, cause, notes or attributes. A tracer that
//!   is shown the exception may keep it, and then it is the tracer's.
//! - It carries nothing but bytes and ints, and only until the awaitable is freed, which is just after the value was
//!   taken. Other values could own a descriptor, or lead back to the awaitable.

use pyo3::ffi;

use super::error::{Raised, raise};
use super::object::{Borrowed, Ref, Slot};

struct Stop(Slot);
// SAFETY: touched only with the GIL held.
unsafe impl Sync for Stop {}
static STOP: Stop = Stop(Slot::empty());

/// Ends an await of `awaitable` with this value: `tp_iternext` returns null with the exception that is set, or with none,
/// which stands for a StopIteration without a value. [`forget_value`] must be called when the awaitable is freed.
#[inline(always)]
pub(crate) fn end_await(awaitable: Borrowed<'_>, by_hand: bool, value: Ref) -> Raised {
    if value.is_none() {
        return Raised;
    }
    // SAFETY: live objects.
    let shared = unsafe {
        !by_hand
            && ffi::Py_REFCNT(awaitable.as_ptr()) == 1
            && (ffi::PyBytes_CheckExact(value.as_ptr()) != 0 || ffi::PyLong_CheckExact(value.as_ptr()) != 0)
    };
    if shared { raise_shared(value) } else { raise_stop(value) }
}

/// Raises a StopIteration that Python code may catch and keep.
pub(crate) fn raise_stop(value: Ref) -> Raised {
    let stop = match value.is_none() {
        // SAFETY: the interpreter's own class, called without arguments: an owned reference, or null with an error.
        true => unsafe { Ref::from_owned(ffi::PyObject_CallNoArgs(ffi::PyExc_StopIteration)) },
        false => new_stop(&value),
    };
    if let Some(stop) = stop {
        // A coroutine's StopIteration has a context until 3.13, and none since.
        #[cfg(Py_3_14)]
        raise(stop);
        // SAFETY: a live exception.
        #[cfg(not(Py_3_14))]
        unsafe {
            ffi::PyErr_SetObject(ffi::PyExc_StopIteration, stop.as_ptr());
        }
    }
    Raised
}

/// None with an error set.
fn new_stop(value: &Ref) -> Option<Ref> {
    // SAFETY: the interpreter's own class, called with a live object: an owned reference, or null with an error.
    unsafe { Ref::from_owned(ffi::PyObject_CallOneArg(ffi::PyExc_StopIteration, value.as_ptr())) }
}

#[inline(always)]
fn raise_shared(value: Ref) -> Raised {
    if let Some(stop) = unseen() {
        let old = exchange(&stop, value);
        raise(stop);
        drop(old);
    } else if let Some(stop) = new_stop(&value) {
        STOP.0.set(Some(stop.clone_ref()));
        raise(stop);
    }
    Raised
}

/// The shared exception, if nobody else has hold of it and nothing is attached to it.
#[inline(always)]
fn unseen() -> Option<Ref> {
    let stop = STOP.0.as_ptr();
    if stop.is_null() {
        return None;
    }
    // SAFETY: an instance of exactly StopIteration, made by `new_stop`; its layout is public. `args` is never null, and
    // a tuple of one item as long as nobody has seen the exception.
    unsafe {
        let fields = &*stop.cast::<ffi::PyStopIterationObject>();
        let attached = [fields.dict, fields.notes, fields.traceback, fields.context, fields.cause];
        (ffi::Py_REFCNT(stop) == 1
            && ffi::Py_REFCNT(fields.args) == 1
            && attached.iter().all(|object| object.is_null()))
        .then(|| Ref::from_borrowed(stop))
    }
}

/// Puts another value into the exception, and returns the two references to the old one.
#[inline(always)]
fn exchange(stop: &Ref, value: Ref) -> [Option<Ref>; 2] {
    // SAFETY: as in `unseen`, which has found the exception and its tuple to be ours alone.
    unsafe {
        let fields = &mut *stop.as_ptr().cast::<ffi::PyStopIterationObject>();
        let item = ffi::PyTuple_GET_ITEM(fields.args, 0);
        ffi::PyTuple_SET_ITEM(fields.args, 0, value.clone_ref().into_ptr());
        #[cfg(Py_3_14)]
        {
            // Tuples remember their hash since 3.14.
            (*fields.args.cast::<ffi::PyTupleObject>()).ob_hash = -1;
        }
        [Ref::from_owned(item), Ref::from_owned(std::mem::replace(&mut fields.value, value.into_ptr()))]
    }
}

/// Drops the value that the shared exception carried last. Called when an awaitable is freed.
#[inline(always)]
pub(crate) fn forget_value() {
    match unseen() {
        Some(stop) => drop(exchange(&stop, Ref::none())),
        None => STOP.0.clear(),
    }
}
