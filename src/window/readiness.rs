//! The readiness that the program has set with `wakeloop.set_ready`.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

static READY: AtomicBool = AtomicBool::new(true);
/// The longest delay of a loop that is ready, in nanoseconds.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

pub(crate) fn set(ready: bool, limit: u64) {
    // Relaxed: each stands for itself.
    READY.store(ready, Relaxed);
    LIMIT.store(limit, Relaxed);
}

pub(super) fn is_set() -> bool {
    READY.load(Relaxed)
}

pub(super) fn limit() -> u64 {
    LIMIT.load(Relaxed)
}
