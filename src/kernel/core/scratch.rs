//! Buffers that all connections of a loop share.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The size of the receive buffer. Small messages are copied out of it, so one serves all connections.
pub(crate) const RECEIVE: usize = 256 * 1024;
/// The capacity of a scratch vector: enough for the plaintext of a full receive and of an incomplete record before it.
pub(crate) const SCRATCH: usize = RECEIVE + 32 * 1024;
/// How many vectors are kept for reuse: for incoming ciphertext, incoming plaintext and outgoing ciphertext.
const KEPT: usize = 3;

#[derive(Default)]
pub(crate) struct Scratch {
    receive: Cell<Box<[u8]>>,
    vectors: RefCell<Vec<Vec<u8>>>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("vectors", &self.vectors.borrow().len()).finish_non_exhaustive()
    }
}

impl Scratch {
    /// Lends the receive buffer until the result is dropped. If the caller runs Python code that runs the loop, a
    /// second caller gets another buffer.
    #[inline(always)]
    pub(crate) fn receive_buffer(&self) -> ReceiveBuffer<'_> {
        let mut bytes = self.receive.take();
        if bytes.is_empty() {
            bytes = vec![0; RECEIVE].into_boxed_slice();
        }
        ReceiveBuffer { home: &self.receive, bytes }
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

/// A loop's receive buffer while it is in use: [`RECEIVE`] bytes. Dropping this returns them to the loop.
pub(crate) struct ReceiveBuffer<'a> {
    home: &'a Cell<Box<[u8]>>,
    bytes: Box<[u8]>,
}

impl Deref for ReceiveBuffer<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for ReceiveBuffer<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for ReceiveBuffer<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.home.set(std::mem::take(&mut self.bytes));
    }
}
