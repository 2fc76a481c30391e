//! Writes that wait for the end of the turn.
//!
//! What a callback writes is sent once, when the turn is over. What a protocol writes while it receives data is sent
//! when that call returns.

use std::cell::Cell;

use pyo3::ffi;

use crate::capi::loop_cell::LoopQueue;
use crate::capi::{Fatal, Ref};

/// Sends what a transport has buffered. `C` is the loop's core.
pub(crate) type Flush<C> = fn(&Ref, &C) -> Result<(), Fatal>;

/// A transport whose protocol is receiving data, borrowed from the call that it receives in.
pub(crate) type Delivery<C> = Option<(*mut ffi::PyObject, Flush<C>)>;

#[derive(Debug)]
pub(crate) struct Writes<C> {
    queue: LoopQueue<(Ref, Flush<C>)>,
    delivering: Cell<Delivery<C>>,
}

impl<C> Writes<C> {
    pub(crate) fn new() -> Writes<C> {
        Writes { queue: LoopQueue::new(), delivering: Cell::new(None) }
    }

    #[inline(always)]
    pub(crate) fn push(&self, object: Ref, flush: Flush<C>) {
        self.queue.push_back((object, flush));
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<(Ref, Flush<C>)> {
        self.queue.pop_front()
    }

    /// Drops what was not sent.
    pub(crate) fn clear(&self) {
        drop(self.queue.take());
    }

    /// `object` hands data to its protocol. [`end_delivery`](Writes::end_delivery) gets what is returned.
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

    /// The loop is run inside of a protocol's call: what that call has written so far does not wait for its end.
    pub(crate) fn queue_delivery(&self) {
        if let Some((object, flush)) = self.delivering.take() {
            // SAFETY: the call that lent it is still on the stack.
            self.push(unsafe { Ref::from_borrowed(object) }, flush);
        }
    }
}
