//! The state of one `SSL`'s record buffers, which [`buffer_policy`](super::buffer_policy) decides to retain or to free.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// After this many loop iterations without a read, a connection counts as quiet.
const QUIET: u64 = 256;

/// The state of one `SSL`'s record buffers. Relaxed throughout, because the GIL is held; see `buffer_policy.rs`.
#[derive(Default)]
pub(super) struct Buffers {
    /// The `SSL`, between the end of its handshake and the beginning of its shutdown. Null at other times, and if
    /// CPython has not set SSL_MODE_RELEASE_BUFFERS.
    pub(super) ssl: AtomicPtr<c_void>,
    /// The `SSL` retains its buffers between records.
    pub(super) retained: AtomicBool,
    /// The last loop iteration in which they were used.
    pub(super) used_in: AtomicU64,
    /// OpenSSL is on the stack. CPython may be too, and may have released the GIL.
    in_openssl: AtomicBool,
}

impl Buffers {
    /// Forgets the `SSL`, because it is freed, or because CPython begins to shut it down, which it does without the
    /// GIL.
    pub(super) fn forget(&self) {
        self.ssl.store(null_mut(), Ordering::Relaxed);
    }

    /// Runs `body`, which calls OpenSSL. The buffers are not freed while it runs.
    #[inline(always)]
    pub(super) fn call_openssl<T>(&self, body: impl FnOnce() -> T) -> T {
        self.in_openssl.store(true, Ordering::Relaxed);
        let result = body();
        self.in_openssl.store(false, Ordering::Relaxed);
        result
    }

    pub(super) fn is_quiet(&self, turn: u64) -> bool {
        turn.wrapping_sub(self.used_in.load(Ordering::Relaxed)) >= QUIET
            && !self.in_openssl.load(Ordering::Relaxed)
    }
}
