//! Completes the futures on which tasks wait for native code.

use super::core::Core;
use crate::capi::future;
use crate::capi::{Fatal, Ref};

/// `future.set_result(None)`, unless the future is done (or cancelled).
pub(crate) fn complete(core: &Core, future: &Ref) -> Result<(), Fatal> {
    complete_with(core, future, &Ref::none())
}

/// `future.set_result(result)`, unless the future is done (or cancelled).
pub(crate) fn complete_with(core: &Core, future: &Ref, result: &Ref) -> Result<(), Fatal> {
    future::complete(future, result).or_else(|raised| core.unraisable(raised))
}

/// Is the future done (or cancelled)?
pub(crate) fn is_done(core: &Core, future: &Ref) -> Result<bool, Fatal> {
    future::is_done(future).or_else(|raised| core.unraisable(raised).map(|()| true))
}
