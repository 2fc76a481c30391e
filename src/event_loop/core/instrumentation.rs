//! Debug mode and tracers' patches, which have to see every callback.
//!
//! A loop looks for patches when it is created and when it begins to run. For each callback it checks one flag, which
//! also says whether a program wants to know when each task has made its last step, and whether the flight recorder is
//! on.

use std::cell::Cell;

use crate::compat::patches::{self, Patches};

#[derive(Debug, Default)]
pub(crate) struct Instrumentation {
    debug: Cell<bool>,
    patches: Cell<Patches>,
    /// Some of [`ACTIVE`], [`TIMES_STEPS`] and [`RECORDED`].
    reasons: Cell<u8>,
}

/// Debug mode is on, or there is a patch.
const ACTIVE: u8 = 1;
/// The times of task steps are recorded.
const TIMES_STEPS: u8 = 2;
/// The flight recorder is on.
const RECORDED: u8 = 4;

impl Instrumentation {
    /// Do callbacks and tasks need asyncio's own code path, because debug mode is on or a tracer has patched it?
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.reasons.get() & ACTIVE != 0
    }

    /// Must the run of a callback be seen, or the handling of an event?
    #[inline(always)]
    pub(crate) fn sees_runs(&self) -> bool {
        self.reasons.get() != 0
    }

    /// Does nobody have to see them but the flight recorder?
    #[inline(always)]
    pub(crate) fn is_only_recorded(&self) -> bool {
        self.reasons.get() & !RECORDED == 0
    }

    pub(crate) fn times_steps(&self) -> bool {
        self.reasons.get() & TIMES_STEPS != 0
    }

    pub(crate) fn set_times_steps(&self, on: bool) {
        self.set(TIMES_STEPS, on);
    }

    pub(crate) fn set_recorded(&self, on: bool) {
        self.set(RECORDED, on);
    }

    #[inline(always)]
    pub(crate) fn is_debug(&self) -> bool {
        self.debug.get()
    }

    pub(crate) fn set_debug(&self, on: bool) {
        self.debug.set(on);
        self.update();
    }

    /// Is `asyncio.Handle._run` patched?
    pub(crate) fn patches_handle_run(&self) -> bool {
        self.patches.get().handle_run
    }

    /// Looks for patches again.
    #[cold]
    pub(crate) fn look_for_patches(&self) {
        self.patches.set(patches::look());
        self.update();
    }

    fn update(&self) {
        let Patches { handle_run, create_task } = self.patches.get();
        self.set(ACTIVE, self.debug.get() || handle_run || create_task);
    }

    fn set(&self, reason: u8, on: bool) {
        let others = self.reasons.get() & !reason;
        self.reasons.set(if on { others | reason } else { others });
    }
}
