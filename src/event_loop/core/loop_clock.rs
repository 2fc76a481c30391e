//! `loop.time()`, and whether the program has put another clock in its place.
//!
//! Test clocks override `time` or `call_at` on the loop or on its class, or replace `time.monotonic`. CPython gives a
//! class that is changed another version, so one comparison per question finds out whether to look again.

use std::cell::Cell;
use std::ffi::c_uint;

use super::super::clock::monotonic;
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
    pub(crate) fn now(&self, event_loop: &Ref) -> Result<f64, Raised> {
        if self.is_custom(event_loop) { custom_now(event_loop) } else { Ok(monotonic()) }
    }

    /// Is the time not the kernel's?
    #[inline(always)]
    pub(crate) fn is_custom(&self, event_loop: &Ref) -> bool {
        self.refresh(event_loop);
        self.custom_time.get()
    }

    /// Is the time not the kernel's, or `call_at` not ours?
    #[inline(always)]
    pub(crate) fn is_custom_timing(&self, event_loop: &Ref) -> bool {
        self.refresh(event_loop);
        self.custom_time.get() | self.custom_call_at.get()
    }

    /// Was `call_at` overridden at the last look? `call_later` has to call it then.
    pub(crate) fn has_custom_call_at(&self) -> bool {
        self.custom_call_at.get()
    }

    #[inline(always)]
    fn refresh(&self, event_loop: &Ref) {
        if class_version(event_loop) != self.class_version.get()
            || clock::changes() != self.module_changes.get()
        {
            self.look(event_loop);
        }
    }

    /// Looks anew.
    #[cold]
    pub(crate) fn look(&self, event_loop: &Ref) {
        // Counted before the look: a change during it is looked at again.
        let changes = clock::changes();
        // A failure is the user's own `__getattr__`.
        let replaced = clock::replaced(event_loop).unwrap_or_else(|raised| {
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
fn class_version(event_loop: &Ref) -> c_uint {
    // SAFETY: the type of a live object.
    unsafe { (*event_loop.kind()).tp_version_tag }
}

/// Calls `loop.time()` as a Python method.
#[cold]
pub(crate) fn custom_time(event_loop: &Ref) -> Result<Ref, Raised> {
    event_loop.getattr(&imports().time)?.call(&[])
}

#[cold]
fn custom_now(event_loop: &Ref) -> Result<f64, Raised> {
    custom_time(event_loop)?.to_float()
}
