//! Memory for large messages.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::sizes::LARGE;

/// The largest message that the heap is prepared for. Those below [`LARGE`] need no preparation.
static HEAP: AtomicUsize = AtomicUsize::new(LARGE - 1);

/// The first size that the heap is prepared for.
const FIRST: usize = 768 * 1024;
/// Blocks of less than 32 MiB change glibc's thresholds, and one of a third more than this is allocated.
const MOST: usize = 23 * 1024 * 1024;

/// Makes glibc keep the freed memory of objects of up to `size` bytes. Called before such an object is allocated or grown.
///
/// glibc returns the top of its heap to the system as soon as 128 KiB are free there. With messages of that size, this
/// happens after each message: at 100 KiB, two `brk` calls and 13 page faults per message were more than half of its
/// cost. And it maps each block of 128 KiB or more anew. glibc raises both thresholds to the size of a mapped block when
/// that is freed. But an object that is shrunk before it is freed leaves them lower than the next one of its kind needs, and
/// glibc 2.43 maps even the next block of the same size anew. So this function allocates and frees a larger block, without
/// touching its pages. With other C libraries it has no effect.
#[inline(always)]
pub(crate) fn keep(size: usize) {
    if size > HEAP.load(Relaxed) && size <= MOST {
        prepare(size);
    }
}

#[cold]
fn prepare(size: usize) {
    let size = size.max(FIRST);
    HEAP.fetch_max(size, Relaxed);
    // SAFETY: the block, or null, is freed at once. `black_box` prevents the compiler from removing both calls.
    unsafe { libc::free(std::hint::black_box(libc::malloc(size + size / 3))) };
}
