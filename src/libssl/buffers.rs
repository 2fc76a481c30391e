//! What is known of the record buffers of one `SSL`, which [`keepers`](super::keepers) has it keep or free.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// The turns of the loop after which a connection counts as quiet.
const QUIET: u64 = 256;

/// What is known of the buffers of one `SSL`. Relaxed throughout: see the head of `keepers.rs`.
#[derive(Default)]
pub(super) struct Buffers {
    /// The `SSL`, from the end of its handshake to its death; null if nobody has asked it to free its buffers.
    pub(super) ssl: AtomicPtr<c_void>,
    /// They are kept.
    pub(super) kept: AtomicBool,
    /// The last turn in which they were used.
    pub(super) used_in: AtomicU64,
    /// OpenSSL is on the stack, perhaps below CPython, which lets other threads run meanwhile.
    at_work: AtomicBool,
}

impl Buffers {
    /// The `SSL` is gone, or it is being shut down, by CPython and without the GIL.
    pub(super) fn forget(&self) {
        self.ssl.store(null_mut(), Ordering::Relaxed);
    }

    /// Runs `body`, which calls OpenSSL: meanwhile the buffers stay.
    #[inline(always)]
    pub(super) fn during<T>(&self, body: impl FnOnce() -> T) -> T {
        self.at_work.store(true, Ordering::Relaxed);
        let result = body();
        self.at_work.store(false, Ordering::Relaxed);
        result
    }

    pub(super) fn is_quiet(&self, turn: u64) -> bool {
        turn.wrapping_sub(self.used_in.load(Ordering::Relaxed)) >= QUIET
            && !self.at_work.load(Ordering::Relaxed)
    }
}
