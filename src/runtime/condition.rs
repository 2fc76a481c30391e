//! Waits under a lock.

use std::time::Instant;

use super::shim::{Condvar, MutexGuard};
use crate::poison::unpoisoned;

/// Waits on a condvar until `done`, or until the deadline.
pub(super) fn wait_until<'a, T>(
    changed: &Condvar,
    mut state: MutexGuard<'a, T>,
    deadline: Option<Instant>,
    done: impl Fn(&T) -> bool,
) -> MutexGuard<'a, T> {
    while !done(&state) {
        state = match deadline {
            None => unpoisoned(changed.wait(state)),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return state;
                }
                unpoisoned(changed.wait_timeout(state, left)).0
            }
        };
    }
    state
}
