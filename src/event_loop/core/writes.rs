//! Transports that have buffered writes to send.
//!
//! What callbacks write is sent at the end of the turn, or between them if they take long, in one call per transport.
//! What a protocol writes in `data_received` or `buffer_updated` is sent when that method returns.

use std::cell::Cell;

use pyo3::ffi;

use crate::capi::loop_cell::LoopQueue;
use crate::capi::{Fatal, Ref};

/// Sends what a transport has buffered. `C` is the loop's core.
pub(crate) type Flush<C> = fn(&Ref, &C) -> Result<(), Fatal>;

/// The transport whose protocol is receiving data. It is borrowed: the call on the stack keeps it alive.
pub(crate) type Delivery<C> = Option<(*mut ffi::PyObject, Flush<C>)>;

#[derive(Debug)]
pub(crate) struct Writes<C> {
    /// The transports, each with its function.
    pub(crate) queue: LoopQueue<(Ref, Flush<C>)>,
    delivering: Cell<Delivery<C>>,
}

impl<C> Writes<C> {
    pub(crate) fn new() -> Writes<C> {
        Writes { queue: LoopQueue::default(), delivering: Cell::new(None) }
    }

    /// `object` begins to deliver data to its protocol. The caller passes the result to
    /// [`end_delivery`](Writes::end_delivery).
    #[inline(always)]
    pub(crate) fn begin_delivery(&self, object: &Ref, flush: Flush<C>) -> Delivery<C> {
        self.delivering.replace(Some((object.as_ptr(), flush)))
    }

    #[inline(always)]
    pub(crate) fn end_delivery(&self, outer: Delivery<C>) {
        self.delivering.set(outer);
    }

    #[inline(always)]
    pub(crate) fn is_delivering(&self, object: &Ref) -> bool {
        self.delivering.get().is_some_and(|(delivering, _)| delivering == object.as_ptr())
    }

    /// Called when the loop is run inside of a protocol's method. What this method has written so far is then sent
    /// without waiting for its end.
    pub(crate) fn queue_delivery(&self) {
        if let Some((object, flush)) = self.delivering.take() {
            // SAFETY: the call that keeps the transport alive is still on the stack.
            self.queue.push((unsafe { Ref::from_borrowed(object) }, flush));
        }
    }
}
