//! The clock of `loop.time()`, which a program may replace.
//!
//! Test clocks override `time` or `call_at` on the loop or on its class, patch them on asyncio's classes, or replace
//! `time.monotonic`. Whenever the time is needed, two comparisons (of the class's version tag, and of a count of changes)
//! tell whether to look for that again. A look also lets the loop's class inherit what programs have patched on the
//! classes of asyncio (`_loop/inheritance.py`).

use std::cell::Cell;
use std::ffi::c_uint;

use super::super::support::call_support;
use crate::capi::error::unless_raised;
use crate::capi::imports::imports;
use crate::capi::shared::version_tag;
use crate::capi::{Raised, Ref, Slot};
use crate::clock::monotonic;
use crate::compat::clock;

#[derive(Debug, Default)]
pub(crate) struct LoopClock {
    custom_time: Cell<bool>,
    custom_call_at: Cell<bool>,
    /// The version of the loop's class at the last look.
    class_version: Cell<c_uint>,
    /// The number of changes of watched modules at the last look.
    module_changes: Cell<u64>,
    /// The class whose methods the last look has replaced by patches. Empty once [`LoopClock::take_changed`] was called.
    changed: Slot,
}

/// A class without a version has 0, so that it never equals this one.
const NO_VERSION: c_uint = c_uint::MAX;

impl LoopClock {
    /// The current time, on the clock of the timers. `event_loop` is the loop of this clock, in all methods.
    #[inline(always)]
    pub(crate) fn now(&self, event_loop: &Ref) -> Result<f64, Raised> {
        if self.is_custom(event_loop) { custom_now(event_loop) } else { Ok(monotonic()) }
    }

    /// Has the program replaced the clock?
    #[inline(always)]
    pub(crate) fn is_custom(&self, event_loop: &Ref) -> bool {
        self.refresh(event_loop);
        self.custom_time.get()
    }

    /// Has the program replaced the clock or `call_at`?
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

    /// Looks for patches if the class has changed since the last look. Has a look replaced methods of the class since
    /// [`LoopClock::take_changed`] was called?
    #[inline(always)]
    pub(crate) fn has_changed(&self, event_loop: &Ref) -> bool {
        self.refresh(event_loop);
        !self.changed.is_empty()
    }

    /// The class if a look has replaced some of its methods.
    pub(crate) fn take_changed(&self) -> Option<Ref> {
        self.changed.take()
    }

    /// Looks for replacements again.
    #[cold]
    pub(crate) fn look(&self, event_loop: &Ref) {
        // First, because it may put a patched `time` on the class.
        let changed = unless_raised(call_support(event_loop.py(), "inherit", &[event_loop.borrow()]));
        // Kept until somebody takes it: the next look may follow at once, and finds nothing new.
        if let Some(class) = changed.filter(|class| !class.is_none()) {
            self.changed.set(Some(class));
        }
        // Read first: a change during the look causes another look.
        let changes = clock::changes();
        // It fails only in a `__getattr__` of the user's class, or if `time.monotonic` was deleted.
        let replaced = unless_raised(clock::replaced(event_loop)).unwrap_or_default();
        self.module_changes.set(if clock::has_settled() { changes } else { changes.wrapping_sub(1) });
        // The look has assigned a version tag to the class if it had none.
        self.class_version.set(match class_version(event_loop) {
            // CPython gives a class no more than a thousand versions. Then each need of the time is a look.
            0 => NO_VERSION,
            version => version,
        });
        self.custom_time.set(replaced.time);
        self.custom_call_at.set(replaced.call_at);
    }
}

#[inline(always)]
fn class_version(event_loop: &Ref) -> c_uint {
    // SAFETY: the type of a live object.
    unsafe { version_tag(event_loop.kind()) }
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
