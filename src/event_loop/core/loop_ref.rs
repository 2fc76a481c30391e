//! A reference to a loop object of ours.

use crate::capi::Ref;

/// The object is an instance of our loop class, so it has a core: see `LoopRef::core`.
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

    #[inline(always)]
    pub(crate) fn into_object(self) -> Ref {
        self.0
    }
}
