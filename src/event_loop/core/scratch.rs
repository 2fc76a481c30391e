//! Buffers that every connection of a loop shares.

use std::cell::{RefCell, UnsafeCell};

/// The size of the receive buffer. Small messages are copied out of it, so one serves all connections.
pub(crate) const RECEIVE: usize = 256 * 1024;
/// The room of a scratch vector: what a full receive decrypts to, with the rest of a record before it.
pub(crate) const SCRATCH: usize = RECEIVE + 32 * 1024;
/// How many vectors are kept: ciphertext and plaintext of what comes in, ciphertext of what goes out.
const KEPT: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Scratch {
    receive: UnsafeCell<Vec<u8>>,
    vectors: RefCell<Vec<Vec<u8>>>,
}

impl Scratch {
    /// The receive buffer. The caller copies out of it before anything else can run.
    #[allow(clippy::mut_from_ref, reason = "loop thread only; the content is copied before Python runs")]
    pub(crate) fn receive_buffer(&self) -> &mut [u8] {
        // SAFETY: see the reason above.
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

    /// Takes a vector back for the next caller. One that never comes back is freed like any other.
    pub(crate) fn give_back(&self, mut vector: Vec<u8>) {
        vector.clear();
        let mut kept = self.vectors.borrow_mut();
        if kept.len() < KEPT && (SCRATCH..=2 * SCRATCH).contains(&vector.capacity()) {
            kept.push(vector);
        }
    }
}
