//! Buffers that all connections of a loop share.

use std::cell::{RefCell, UnsafeCell};

/// The size of the receive buffer. Small messages are copied out of it, so one serves all connections.
pub(crate) const RECEIVE: usize = 256 * 1024;
/// The capacity of a scratch vector: enough for the plaintext of a full receive and of an incomplete record before it.
pub(crate) const SCRATCH: usize = RECEIVE + 32 * 1024;
/// How many vectors are kept for reuse: for incoming ciphertext, incoming plaintext and outgoing ciphertext.
const KEPT: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Scratch {
    receive: UnsafeCell<Vec<u8>>,
    vectors: RefCell<Vec<Vec<u8>>>,
}

impl Scratch {
    /// The receive buffer. The caller copies the data before any other code can run.
    #[allow(clippy::mut_from_ref, reason = "loop thread only; the content is copied before Python runs")]
    pub(crate) fn receive_buffer(&self) -> &mut [u8] {
        // SAFETY: only the loop's thread calls this, and the caller is done with the slice before other code runs. So
        // there is never a second reference.
        let buffer = unsafe { &mut *self.receive.get() };
        if buffer.is_empty() {
            *buffer = vec![0; RECEIVE];
        }
        buffer
    }

    /// An empty vector with room for at least [`SCRATCH`] bytes. The caller may hold it while Python runs.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.vectors.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(SCRATCH))
    }

    /// Returns a vector for reuse. It is no error if a caller drops its vector instead.
    pub(crate) fn give_back(&self, mut vector: Vec<u8>) {
        vector.clear();
        let mut kept = self.vectors.borrow_mut();
        if kept.len() < KEPT && (SCRATCH..=2 * SCRATCH).contains(&vector.capacity()) {
            kept.push(vector);
        }
    }
}
