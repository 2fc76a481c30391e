//! References to a wakeloop event loop.

use crate::capi::{Ref, Slot};

/// A reference to an instance of our loop class. So it has a core; see `LoopRef::core`.
#[derive(Debug)]
pub(crate) struct LoopRef(Ref);

impl LoopRef {
    /// # Safety
    /// `object` is an instance of our loop class.
    #[inline(always)]
    pub(crate) unsafe fn new(object: Ref) -> LoopRef {
        LoopRef(object)
    }

    #[inline(always)]
    pub(crate) fn object(&self) -> &Ref {
        &self.0
    }
}

/// A field of a native object that refers to a loop until it is cleared.
#[derive(Debug)]
pub(crate) struct LoopSlot(Slot);

impl LoopSlot {
    #[inline(always)]
    pub(crate) fn new(event_loop: LoopRef) -> LoopSlot {
        LoopSlot(Slot::new(Some(event_loop.0)))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<LoopRef> {
        self.0.get().map(LoopRef)
    }

    pub(crate) fn take(&self) -> Option<LoopRef> {
        self.0.take().map(LoopRef)
    }

    /// For the garbage collector.
    pub(crate) fn slot(&self) -> &Slot {
        &self.0
    }
}
