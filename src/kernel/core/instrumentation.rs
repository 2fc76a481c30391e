//! Debug mode and tracers' patches, which have to see every callback, and other rare states that the methods which
//! schedule callbacks have to respect.
//!
//! A loop looks for patches when it is created and when it begins to run. For each callback it checks one flag, which
//! also says whether a program wants to know when each task has made its last step, whether the flight recorder is on,
//! and whether processor time is split by label. Between two runs a bit of the same flag makes the methods that
//! schedule callbacks look for patches first, and another one says that the loop is closed.

use std::cell::Cell;

use crate::compat::patches;

#[derive(Debug, Default)]
pub(crate) struct Instrumentation {
    debug: Cell<bool>,
    /// `asyncio.Handle._run` is patched.
    patches_handle_run: Cell<bool>,
    /// Some of [`ACTIVE`], [`TIMES_STEPS`], [`RECORDED`], [`BETWEEN_RUNS`], [`CLOSED`],
    /// [`LABELLED`] and [`SAMPLED`].
    reasons: Cell<u8>,
}

/// Debug mode is on, or there is a patch.
const ACTIVE: u8 = 1;
/// The times of task steps are recorded.
const TIMES_STEPS: u8 = 2;
/// The flight recorder is on.
const RECORDED: u8 = 4;
/// The native `run_forever` is not active.
const BETWEEN_RUNS: u8 = 8;
/// The loop is closed.
const CLOSED: u8 = 16;
/// Processor time is split by label.
const LABELLED: u8 = 32;
/// The loop is suspected of waiting busily, and entries are counted.
const SAMPLED: u8 = 64;

impl Instrumentation {
    /// Do callbacks and tasks need asyncio's own code path, because debug mode is on or a tracer has patched it?
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.reasons.get() & ACTIVE != 0
    }

    /// Must a method that schedules callbacks take its slow path? That is so where [`Instrumentation::is_active`] is
    /// true, between two runs, where the method looks for patches first, and on a closed loop.
    #[inline(always)]
    pub(crate) fn is_attentive(&self) -> bool {
        self.reasons.get() & (ACTIVE | BETWEEN_RUNS | CLOSED) != 0
    }

    #[inline(always)]
    pub(crate) fn is_between_runs(&self) -> bool {
        self.reasons.get() & BETWEEN_RUNS != 0
    }

    pub(crate) fn set_between_runs(&self, on: bool) {
        self.set(BETWEEN_RUNS, on);
    }

    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.reasons.get() & CLOSED != 0
    }

    pub(crate) fn set_closed(&self, on: bool) {
        self.set(CLOSED, on);
    }

    /// Must the run of a callback be seen, or the handling of an event?
    #[inline(always)]
    pub(crate) fn sees_runs(&self) -> bool {
        self.reasons.get() & (ACTIVE | TIMES_STEPS | RECORDED | LABELLED | SAMPLED) != 0
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

    pub(crate) fn is_sampled(&self) -> bool {
        self.reasons.get() & SAMPLED != 0
    }

    pub(crate) fn set_sampled(&self, on: bool) {
        self.set(SAMPLED, on);
    }

    pub(crate) fn is_labelled(&self) -> bool {
        self.reasons.get() & LABELLED != 0
    }

    pub(crate) fn set_labelled(&self, on: bool) {
        self.set(LABELLED, on);
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
        self.patches_handle_run.get()
    }

    /// Looks for patches again.
    #[cold]
    pub(crate) fn look_for_patches(&self) {
        self.patches_handle_run.set(patches::handle_run_is_patched());
        self.update();
    }

    fn update(&self) {
        self.set(ACTIVE, self.debug.get() || self.patches_handle_run.get());
    }

    fn set(&self, reason: u8, on: bool) {
        let others = self.reasons.get() & !reason;
        self.reasons.set(if on { others | reason } else { others });
    }
}
