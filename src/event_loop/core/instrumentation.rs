//! Debug mode, and tracers that patch asyncio: what has to see every callback.
//!
//! A loop looks for patches when it is made, when it begins to run and when its class has changed. Per callback only
//! one flag is asked.

use std::cell::Cell;

use crate::compat::patches::{self, Patches};

#[derive(Debug, Default)]
pub(crate) struct Instrumentation {
    debug: Cell<bool>,
    patches: Cell<Patches>,
    /// Debug mode, or any patch.
    active: Cell<bool>,
}

impl Instrumentation {
    /// Must callbacks and tasks take asyncio's own way, because debug mode or a tracer wants to see them?
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

    /// Looks anew for patches.
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
