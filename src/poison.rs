//! Locks whose holder has panicked.

use std::sync::PoisonError;

/// Ignores poisoning: what wakeloop's locks guard is consistent between statements, and code that a caller gives does
/// not run under them.
pub(crate) fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
