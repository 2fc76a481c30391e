//! Memory that is asked for before it is needed.
//!
//! With ten thousand sockets, nothing of the one that becomes ready is in the processor's caches. Its readiness, its
//! waiter, the waiter's task: each is found by a pointer in the one before, and each costs as much as some hundred
//! instructions. But a turn of the driver tells of many sockets at once, so that all of these can be on their way together.

/// A cache line of nearly all processors there are.
const LINE: usize = 64;

/// Asks for the first `bytes` at `start`, which may be any address, valid or not. A mere hint, and none where the standard
/// library has no instruction for it.
#[inline]
pub(super) fn prefetch<T>(start: *const T, bytes: usize) {
    for offset in (0..bytes).step_by(LINE) {
        let line = start.cast::<i8>().wrapping_add(offset);
        cfg_select! {
            target_arch = "x86_64" => {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: it reads nothing that the program could see, and no address makes it fault.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line) }
            }
            _ => { let _ = line; }
        }
    }
}
