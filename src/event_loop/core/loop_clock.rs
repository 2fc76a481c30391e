//! The time as the loop tells it, and whether the program has put another clock in its place.
//!
//! Test clocks override `time` or `call_at` on the loop or on its class, or replace `time.monotonic`. CPython gives a
//! class that is changed another version, so one comparison per question finds out whether to look again.

use std::cell::Cell;
use std::ffi::c_uint;

use pyo3::ffi;

use super::super::clock::monotonic;
use crate::capi::call::{call0, getattr};
use crate::capi::imports::imports;
use crate::capi::{Raised, Ref};
use crate::compat::clock;

#[derive(Debug, Default)]
pub(crate) struct LoopClock {
    custom_time: Cell<bool>,
    custom_call_at: Cell<bool>,
    /// The version of the loop's class at the last look.
    class_version: Cell<c_uint>,
    /// How often Python's `time` module had been changed by then.
    module_changes: Cell<u64>,
}

impl LoopClock {
    /// Now, on the clock that timers are set by. `event_loop` is the loop of this clock, in all methods.
    #[inline(always)]
    pub(crate) fn now(&self, event_loop: *mut ffi::PyObject) -> Result<f64, Raised> {
        if self.is_custom(event_loop) { custom_now(event_loop) } else { Ok(monotonic()) }
    }

    /// Is the time not the kernel's?
    #[inline(always)]
    pub(crate) fn is_custom(&self, event_loop: *mut ffi::PyObject) -> bool {
        self.refresh(event_loop);
        self.custom_time.get()
    }

    /// Is the time not the kernel's, or `call_at` not ours?
    #[inline(always)]
    pub(crate) fn is_custom_timing(&self, event_loop: *mut ffi::PyObject) -> bool {
        self.refresh(event_loop);
        self.custom_time.get() | self.custom_call_at.get()
    }

    /// Was `call_at` overridden at the last look? `call_later` has to call it then.
    pub(crate) fn has_custom_call_at(&self) -> bool {
        self.custom_call_at.get()
    }

    #[inline(always)]
    fn refresh(&self, event_loop: *mut ffi::PyObject) {
        if class_version(event_loop) != self.class_version.get()
            || clock::changes() != self.module_changes.get()
        {
            self.look(event_loop);
        }
    }

    /// Looks anew.
    #[cold]
    pub(crate) fn look(&self, event_loop: *mut ffi::PyObject) {
        // Counted before the look: a change during it is looked at again.
        let changes = clock::changes();
        // SAFETY: the caller's loop is alive.
        let object = unsafe { Ref::from_borrowed(event_loop) };
        // A failure is the user's own `__getattr__`.
        let replaced = clock::replaced(&object).unwrap_or_else(|raised| {
            drop(raised.take());
            clock::Replaced::default()
        });
        self.module_changes.set(if clock::has_settled() { changes } else { changes.wrapping_sub(1) });
        // The look has given the class a version, if it had none.
        self.class_version.set(class_version(event_loop));
        self.custom_time.set(replaced.time);
        self.custom_call_at.set(replaced.call_at);
    }
}

#[inline(always)]
fn class_version(event_loop: *mut ffi::PyObject) -> c_uint {
    // SAFETY: a live object.
    unsafe { (*ffi::Py_TYPE(event_loop)).tp_version_tag }
}

/// `loop.time()`, as it says it.
#[cold]
pub(crate) fn custom_time(event_loop: *mut ffi::PyObject) -> Result<Ref, Raised> {
    call0(&getattr(event_loop, imports().time.as_ptr())?)
}

#[cold]
fn custom_now(event_loop: *mut ffi::PyObject) -> Result<f64, Raised> {
    let now = custom_time(event_loop)?;
    // SAFETY: a live object; -1 with an error set means failure.
    let value = unsafe { ffi::PyFloat_AsDouble(now.as_ptr()) };
    // SAFETY: asks for the indicator only.
    if value == -1.0 && !unsafe { ffi::PyErr_Occurred() }.is_null() { Err(Raised) } else { Ok(value) }
}
