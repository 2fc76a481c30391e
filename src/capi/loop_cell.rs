//! Cells for the state of an event loop.
//!
//! **The invariant.** Such state belongs to one loop. It is touched in a section of that loop (see
//! [`section`](super::section)). Any call into Python, and any drop of a reference, can come back to the same state, so
//! no borrow of it may last across one. These types enforce the second half of the invariant:
//!
//! - [`LoopQueue`] and `Cell<Option<T>>` only move values in and out: nothing is ever borrowed. They cost nothing.
//! - [`LoopCell`] lends its content to a closure, and refuses to lend it twice. The check is a load and two stores.
//!
//! None of them is `Sync`. The object that holds them says why other threads do not reach it.

use std::cell::{Cell, UnsafeCell};
use std::collections::{TryReserveError, VecDeque};

/// A value that is lent to one closure at a time.
#[derive(Debug, Default)]
pub(crate) struct LoopCell<T> {
    value: UnsafeCell<T>,
    lent: Cell<bool>,
}

/// Ends the loan, after a panic too.
struct Loan<'a>(&'a Cell<bool>);

impl Drop for Loan<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<T> LoopCell<T> {
    pub(crate) const fn new(value: T) -> LoopCell<T> {
        LoopCell { value: UnsafeCell::new(value), lent: Cell::new(false) }
    }

    /// Lends the value for the time of `body`, which runs no Python.
    ///
    /// # Panics
    /// If the value is lent already: `body` has come back here, through Python code or a destructor. Python sees a
    /// `RuntimePanic`.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        assert!(!self.lent.replace(true), "loop state is used while it is lent");
        let _loan = Loan(&self.lent);
        // SAFETY: the flag says that there is no other borrow, and the type is not `Sync`.
        body(unsafe { &mut *self.value.get() })
    }
}

/// A queue that can be used behind a shared reference, because its items only move in and out.
#[derive(Debug)]
pub(crate) struct LoopQueue<T>(UnsafeCell<VecDeque<T>>);

impl<T> Default for LoopQueue<T> {
    fn default() -> Self {
        LoopQueue(UnsafeCell::default())
    }
}

/// So many items can be pushed when there is no memory for more items of the program.
const SPARE: usize = 16;

#[cold]
fn grow<T>(items: &mut VecDeque<T>) -> Result<(), TryReserveError> {
    items.try_reserve(SPARE + 1)
}

impl<T> LoopQueue<T> {
    /// # Safety
    /// The borrow ends before any code of `T` or of a caller runs.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the methods below keep the contract")]
    unsafe fn items(&self) -> &mut VecDeque<T> {
        // SAFETY: the type is not `Sync`, and by the caller's contract there is no other borrow.
        unsafe { &mut *self.0.get() }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        // SAFETY: no code of `T` runs.
        unsafe { self.items() }.len()
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes room for an item of the program, and for some that the loop itself pushes later, which cannot fail.
    ///
    /// # Errors
    /// If there is no memory for it.
    #[inline(always)]
    pub(crate) fn try_reserve(&self) -> Result<(), TryReserveError> {
        // SAFETY: no code of `T` runs.
        let items = unsafe { self.items() };
        if items.capacity() - items.len() > SPARE { Ok(()) } else { grow(items) }
    }

    #[inline(always)]
    pub(crate) fn push(&self, item: T) {
        // SAFETY: a move; no code of `T` runs.
        unsafe { self.items() }.push_back(item);
    }

    /// Puts an item before all others.
    #[inline(always)]
    pub(crate) fn push_first(&self, item: T) {
        // SAFETY: a move; no code of `T` runs.
        unsafe { self.items() }.push_front(item);
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<T> {
        // SAFETY: a move; no code of `T` runs.
        unsafe { self.items() }.pop_front()
    }

    /// Takes the last item if `is_it` says so, which runs no code of `T`.
    #[inline(always)]
    pub(crate) fn pop_last_if(&self, is_it: impl FnOnce(&T) -> bool) -> Option<T> {
        // SAFETY: a move; no code of `T` runs.
        unsafe { self.items() }.pop_back_if(|item| is_it(item))
    }

    /// All items, which leaves the queue empty and without memory of its own.
    #[inline(always)]
    pub(crate) fn take(&self) -> VecDeque<T> {
        // SAFETY: a move; no code of `T` runs.
        std::mem::take(unsafe { self.items() })
    }

    /// Puts items in, and gives the old ones to the caller.
    #[inline(always)]
    #[must_use = "the old items are dropped by the caller"]
    pub(crate) fn replace(&self, items: VecDeque<T>) -> VecDeque<T> {
        // SAFETY: a move; no code of `T` runs.
        std::mem::replace(unsafe { self.items() }, items)
    }
}
