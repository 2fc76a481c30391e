//! Memory for large messages.

use std::sync::Once;

static HEAP: Once = Once::new();

/// Makes glibc keep the freed memory of large messages. Called before it is allocated.
///
/// glibc returns the top of its heap to the system as soon as 128 KiB are free there. With messages of that size, this
/// happens after each message: at 100 KiB, two `brk` calls and 13 page faults per message were more than half of its
/// cost. And it maps each block of 128 KiB or more anew. glibc raises both thresholds when it frees a mapped block that is
/// larger. But glibc 2.43 maps the next block of the same size anew again, and so each receive of 256 KiB: an upload then
/// costs five times as much. So this function allocates and frees a still larger block, without touching its pages. With
/// other C libraries it has no effect.
#[inline(always)]
pub(crate) fn keep() {
    // SAFETY: the block, or null, is freed at once. `black_box` prevents the compiler from removing both calls.
    HEAP.call_once(|| unsafe { libc::free(std::hint::black_box(libc::malloc(1024 * 1024))) });
}
