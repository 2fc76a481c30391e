//! Completes the futures that native code waits with.

use super::core::Core;
use crate::capi::future;
use crate::capi::{Fatal, Ref};

/// `future.set_result(None)` unless it is done, which a cancelled one is.
pub(crate) fn complete(core: &Core, future: &Ref) -> Result<(), Fatal> {
    complete_with(core, future, &Ref::none())
}

/// The same with another result.
pub(crate) fn complete_with(core: &Core, future: &Ref, result: &Ref) -> Result<(), Fatal> {
    future::complete(future, result).or_else(|raised| core.unraisable(raised))
}

/// Is the future done already? A cancelled one is.
pub(crate) fn is_done(core: &Core, future: &Ref) -> Result<bool, Fatal> {
    future::is_done(future).or_else(|raised| core.unraisable(raised).map(|()| true))
}
