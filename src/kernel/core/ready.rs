//! The ready queue: the callbacks that run in the next turn, in order.
//!
//! It is a ring of owned entries. It has no lock, because every caller is in a section of the loop. A callback of asyncio's own C
//! code ([`Entry::Call`]) has no Handle, because `_asyncio` would drop it.

use super::super::handle::layout::HandleRef;
use crate::capi::loop_cell::LoopQueue;
use crate::capi::{Borrowed, Fatal, Ref};

/// A native function that the loop calls with an object, such as the call of `connection_made` for a transport. `C` is
/// the loop's core.
pub(crate) type NativeStep<C> = fn(&Ref, &C) -> Result<(), Fatal>;

/// An entry of the queue.
#[derive(Debug)]
pub(crate) enum Entry<C> {
    /// A native handle.
    Handle(HandleRef),
    /// A callback of `_asyncio`'s C code: a task's step or wake-up, or a future's done callback.
    Call { callback: Ref, argument: Option<Ref>, context: Ref },
    /// A handle of another class, made by asyncio's inherited code (for signals, say) or by other libraries.
    Foreign(Ref),
    /// A native function with its object. It enters the object's context itself.
    Native { object: Ref, run: NativeStep<C> },
}

/// The queue.
pub(crate) type ReadyQueue<C> = LoopQueue<Entry<C>>;

impl<C> ReadyQueue<C> {
    /// For the garbage collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        let entries = self.take();
        entries.iter().for_each(|entry| entry.traverse(visit));
        let pushed = self.replace(entries);
        debug_assert!(pushed.is_empty());
    }
}

impl<C> Entry<C> {
    /// The callback, or the handle or object that runs it.
    #[inline(always)]
    pub(crate) fn subject(&self) -> Borrowed<'_> {
        match self {
            Entry::Handle(handle) => handle.object().borrow(),
            Entry::Call { callback, .. } => callback.borrow(),
            Entry::Foreign(object) | Entry::Native { object, .. } => object.borrow(),
        }
    }

    fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        let held: [Option<&Ref>; 3] = match self {
            Entry::Handle(handle) => [Some(handle.object()), None, None],
            Entry::Foreign(object) | Entry::Native { object, .. } => [Some(object), None, None],
            Entry::Call { callback, argument, context } => [Some(callback), argument.as_ref(), Some(context)],
        };
        held.into_iter().flatten().for_each(visit);
    }
}
