//! The ready queue: what runs in the next turn, in order.
//!
//! A ring of owned entries without a lock: every caller holds the GIL. A callback of asyncio's own C code
//! ([`Entry::Call`]) has no Handle at all, because `_asyncio` throws it away.

use super::super::handle::layout::HandleRef;
use crate::capi::loop_cell::LoopQueue;
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
pub(crate) struct ReadyQueue<C>(LoopQueue<Entry<C>>);

impl<C> ReadyQueue<C> {
    pub(crate) fn new() -> ReadyQueue<C> {
        ReadyQueue(LoopQueue::new())
    }

    #[inline(always)]
    pub(crate) fn push(&self, entry: Entry<C>) {
        self.0.push_back(entry);
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<Entry<C>> {
        self.0.pop_front()
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// For the collector: the objects that the queue keeps alive. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        let entries = self.0.take();
        entries.iter().for_each(|entry| entry.traverse(visit));
        let pushed = self.0.replace(entries);
        debug_assert!(pushed.is_empty());
    }
}

impl<C> Entry<C> {
    fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        let held: [Option<&Ref>; 3] = match self {
            Entry::Handle(handle) => [Some(handle.object()), None, None],
            Entry::Foreign(object) | Entry::Native { object, .. } => [Some(object), None, None],
            Entry::Call { callback, argument, context } => [Some(callback), argument.as_ref(), Some(context)],
        };
        held.into_iter().flatten().for_each(visit);
    }
}
