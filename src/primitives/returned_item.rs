//! Items that must not be lost between the worker that received them and a task that was cancelled meanwhile.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::runtime::sync::Notify;

/// The items that came back. The next receiver takes from here first.
#[derive(Debug)]
pub(super) struct ReturnedItems<T> {
    items: Mutex<VecDeque<T>>,
    /// Wakes a receiver that waits already.
    returned: Notify,
}

impl<T> ReturnedItems<T> {
    pub(super) fn new() -> Arc<ReturnedItems<T>> {
        Arc::new(ReturnedItems { items: Mutex::default(), returned: Notify::new() })
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        // A panic cannot leave the queue half changed: under this lock items are only pushed and popped.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Option<T> {
        self.items().pop_front()
    }

    /// Waits until an item comes back.
    pub(super) async fn returned(&self) {
        self.returned.notified().await;
    }
}

/// An item on its way to a task. Dropped before the task has taken it, it goes back.
pub(super) struct ReturnedItem<T> {
    item: Option<T>,
    home: Arc<ReturnedItems<T>>,
}

impl<T> ReturnedItem<T> {
    pub(super) fn new(item: T, home: &Arc<ReturnedItems<T>>) -> ReturnedItem<T> {
        ReturnedItem { item: Some(item), home: home.clone() }
    }

    pub(super) fn into_inner(mut self) -> Option<T> {
        self.item.take()
    }
}

impl<T> Drop for ReturnedItem<T> {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            self.home.items().push_front(item);
            self.home.returned.notify_one();
        }
    }
}
