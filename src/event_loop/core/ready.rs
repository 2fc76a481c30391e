//! The ready queue: what runs in the next turn, in order.
//!
//! A ring of owned entries without a lock: every caller holds the GIL. A callback of asyncio's own C code
//! ([`Entry::Call`]) has no Handle at all, because `_asyncio` throws it away.

use std::cell::UnsafeCell;
use std::collections::VecDeque;

use pyo3::ffi;

use super::super::handle::layout::HandleRef;
use crate::capi::{Fatal, Ref};

/// A step of a native object, such as a transport's connection_made. `C` is the loop's core.
pub(crate) type NativeStep<C> = fn(&Ref, &C) -> Result<(), Fatal>;

/// One thing to run.
#[derive(Debug)]
pub(crate) enum Entry<C> {
    /// A handle of ours.
    Handle(HandleRef),
    /// A callback of `_asyncio`'s C code: a task step, a wake-up, a future's done callback.
    Call { callback: Ref, argument: Option<Ref>, context: Ref },
    /// A handle written in Python: signals, inherited code, third parties.
    Foreign(Ref),
    /// A native object's own step, which enters its context itself.
    Native { object: Ref, run: NativeStep<C> },
}

/// The queue.
#[derive(Debug)]
pub(crate) struct ReadyQueue<C>(UnsafeCell<VecDeque<Entry<C>>>);

impl<C> ReadyQueue<C> {
    pub(crate) fn new() -> ReadyQueue<C> {
        ReadyQueue(UnsafeCell::new(VecDeque::with_capacity(64)))
    }

    #[inline(always)]
    pub(crate) fn push(&self, entry: Entry<C>) {
        // SAFETY: GIL held; pushing moves memory and runs nothing.
        unsafe { (*self.0.get()).push_back(entry) }
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<Entry<C>> {
        // SAFETY: as in `push`; the caller drops the entry after the borrow has ended.
        unsafe { (*self.0.get()).pop_front() }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        // SAFETY: as in `push`.
        unsafe { (*self.0.get()).len() }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For the collector: the objects that the queue keeps alive.
    ///
    /// # Safety
    /// Called by the collector; `visit` runs no Python code.
    pub(crate) unsafe fn traverse(&self, visit: &mut dyn FnMut(*mut ffi::PyObject) -> i32) -> i32 {
        // SAFETY: a visitor runs no Python code, so the queue does not move meanwhile.
        for entry in unsafe { (*self.0.get()).iter() } {
            let held: [Option<&Ref>; 3] = match entry {
                Entry::Handle(handle) => [Some(handle.object()), None, None],
                Entry::Foreign(object) | Entry::Native { object, .. } => [Some(object), None, None],
                Entry::Call { callback, argument, context } => {
                    [Some(callback), argument.as_ref(), Some(context)]
                }
            };
            for object in held.into_iter().flatten() {
                let result = visit(object.as_ptr());
                if result != 0 {
                    return result;
                }
            }
        }
        0
    }
}
