//! Debug mode and tracers' patches, which have to see every callback.
//!
//! A loop looks for patches when it is created and when it begins to run. For each callback it checks one flag.

use std::cell::Cell;

use crate::compat::patches::{self, Patches};

#[derive(Debug, Default)]
pub(crate) struct Instrumentation {
    debug: Cell<bool>,
    patches: Cell<Patches>,
    /// Debug mode is on, or there is a patch.
    active: Cell<bool>,
}

impl Instrumentation {
    /// Do callbacks and tasks need asyncio's own code path, because debug mode is on or a tracer has patched it?
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.active.get()
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
        self.active.set(self.debug.get() || handle_run || create_task);
    }
}
