//! The ready queue: what runs in the next turn, in order.
//!
//! A ring of owned entries without a lock: whoever pushes holds the GIL. An entry of asyncio's own C
//! callers ([`Entry::Call`]) has no Handle at all, because `_asyncio` throws it away anyway.

use std::cell::UnsafeCell;
use std::collections::VecDeque;

use pyo3::ffi;

use super::core::Core;
use crate::capi::{Fatal, Ref};

/// A step of a native object, such as a transport's connection_made.
pub(crate) type NativeStep = fn(&Ref, &Core) -> Result<(), Fatal>;

/// One thing to run.
#[derive(Debug)]
pub(crate) enum Entry {
    /// One of our own Handles or TimerHandles.
    Handle(Ref),
    /// A callback of `_asyncio`'s C code: a task step, a wake-up, a future's done callback.
    Call { callback: Ref, argument: Option<Ref>, context: Ref },
    /// A handle written in Python: signals, inherited code, third parties.
    Foreign(Ref),
    /// A native object's own step; `run` runs in whatever context it enters itself.
    Native { object: Ref, run: NativeStep },
}

/// The queue.
#[derive(Debug)]
pub(crate) struct ReadyQueue(UnsafeCell<VecDeque<Entry>>);

impl ReadyQueue {
    pub(crate) fn new() -> ReadyQueue {
        ReadyQueue(UnsafeCell::new(VecDeque::with_capacity(64)))
    }

    #[inline(always)]
    pub(crate) fn push(&self, entry: Entry) {
        // SAFETY: GIL held; pushing moves memory and runs nothing.
        unsafe { (*self.0.get()).push_back(entry) }
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<Entry> {
        // SAFETY: as in `push`; the entry is dropped by the caller, when the borrow is over.
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

    /// For the collector: every object that only the queue keeps alive, one level deep.
    ///
    /// # Safety
    /// Called by the collector with its own visitor.
    pub(crate) unsafe fn traverse(&self, visit: &mut dyn FnMut(*mut ffi::PyObject) -> i32) -> i32 {
        // SAFETY: a visitor runs no Python code, so the queue does not move meanwhile.
        for entry in unsafe { (*self.0.get()).iter() } {
            let result = match entry {
                Entry::Handle(object) | Entry::Foreign(object) | Entry::Native { object, .. } => {
                    visit(object.as_ptr())
                }
                Entry::Call { callback, argument, context } => {
                    let mut result = visit(callback.as_ptr());
                    if result == 0
                        && let Some(argument) = argument
                    {
                        result = visit(argument.as_ptr());
                    }
                    if result == 0 { visit(context.as_ptr()) } else { result }
                }
            };
            if result != 0 {
                return result;
            }
        }
        0
    }
}
