//! Prefetches memory before it is needed.
//!
//! With ten thousand sockets, no part of the one that becomes ready is in the processor's caches. Its
//! readiness, its waiter and the waiter's task are each found by a pointer in the one before, and each costs as
//! much as some hundred instructions. But one poll of the driver reports many sockets at once, so their memory
//! can be fetched in parallel.

/// The size of a cache line on nearly all processors.
const LINE: usize = 64;

/// Prefetches the first `bytes` at `start`, which may be any address, valid or not. This is a hint. It does
/// nothing where the standard library has no instruction for it.
#[inline]
pub(super) fn prefetch<T>(start: *const T, bytes: usize) {
    for offset in (0..bytes).step_by(LINE) {
        let line = start.cast::<i8>().wrapping_add(offset);
        cfg_select! {
            target_arch = "x86_64" => {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: a prefetch has no visible effect, and no address makes it fault.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line) }
            }
            _ => { let _ = line; }
        }
    }
}
