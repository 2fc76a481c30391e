//! What must not be lost between a worker that received it and a task that was cancelled meanwhile.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::runtime::sync::Notify;

/// What came back. Whoever receives next takes from here first.
#[derive(Debug)]
pub(super) struct Returned<T> {
    items: Mutex<VecDeque<T>>,
    /// Something came back, for a receiver that waits already.
    came: Notify,
}

impl<T> Returned<T> {
    pub(super) fn new() -> Arc<Returned<T>> {
        Arc::new(Returned { items: Mutex::default(), came: Notify::new() })
    }

    fn items(&self) -> std::sync::MutexGuard<'_, VecDeque<T>> {
        // Pushing and popping leave no half-way state behind a panic.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Option<T> {
        self.items().pop_front()
    }

    /// Waits until something comes back.
    pub(super) async fn came(&self) {
        self.came.notified().await;
    }
}

/// Something on its way to Python: opened there, or given back.
pub(super) struct Parcel<T> {
    item: Option<T>,
    home: Arc<Returned<T>>,
}

impl<T> Parcel<T> {
    pub(super) fn new(item: T, home: &Arc<Returned<T>>) -> Parcel<T> {
        Parcel { item: Some(item), home: home.clone() }
    }

    pub(super) fn open(mut self) -> Option<T> {
        self.item.take()
    }
}

impl<T> Drop for Parcel<T> {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            self.home.items().push_front(item);
            self.home.came.notify_one();
        }
    }
}
