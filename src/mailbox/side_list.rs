//! A list beside a mailbox, for items that the owner also takes while it does not look at its messages.
//!
//! For each item, its sender also sends a message, after the item is in the list. The owner takes the messages first, and
//! then the items. So it has the item of each message that it has taken, and does not park while there is another item.

use std::sync::atomic::Ordering;

use super::shim::{AtomicBool, Mutex, lock};

/// The list, shared by its owner and all threads that may push to it.
#[derive(Debug)]
pub(crate) struct SideList<T> {
    /// `None` once it is closed.
    items: Mutex<Option<Vec<T>>>,
    /// True while `items` is not empty, so that the owner takes the lock only then.
    filled: AtomicBool,
}

impl<T> SideList<T> {
    pub(crate) fn new() -> SideList<T> {
        SideList { items: Mutex::new(Some(Vec::new())), filled: AtomicBool::new(false) }
    }

    /// Pushes an item, and returns how many there are. The caller then sends a message. If the list is closed, the item
    /// is dropped after the lock, and the result is `None`.
    pub(crate) fn push(&self, item: T) -> Option<usize> {
        let mut items = lock(&self.items);
        let Some(pushed) = &mut *items else {
            drop(items);
            return None;
        };
        pushed.push(item);
        let count = pushed.len();
        // Relaxed: an owner that has taken the message that follows sees it. The lock is still held, so that
        // `take_filled` cannot clear the flag between the push and this store.
        self.filled.store(true, Ordering::Relaxed);
        Some(count)
    }

    /// How many items there are. 0 if it is closed.
    #[cfg(feature = "python")]
    pub(crate) fn len(&self) -> usize {
        lock(&self.items).as_ref().map_or(0, Vec::len)
    }

    /// Takes all items, in order.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Vec<T>> {
        // Relaxed: the lock orders the items.
        if self.filled.load(Ordering::Relaxed) { self.take_filled() } else { None }
    }

    #[cold]
    #[inline(never)]
    fn take_filled(&self) -> Option<Vec<T>> {
        let mut items = lock(&self.items);
        // Relaxed: the lock orders it and the store in `push`.
        self.filled.store(false, Ordering::Relaxed);
        items.as_mut().map(std::mem::take)
    }

    /// Closes it, and drops its items.
    #[cfg(feature = "python")]
    pub(crate) fn close(&self) {
        let items = lock(&self.items).take();
        drop(items);
    }

    /// Is the lock free?
    #[cfg(feature = "python")]
    pub(crate) fn is_unlocked(&self) -> bool {
        !matches!(self.items.try_lock(), Err(std::sync::TryLockError::WouldBlock))
    }
}
