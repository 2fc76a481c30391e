//! Notifies tasks that something is closed.

use std::sync::Arc;

use crate::runtime::sync::Semaphore;

/// More permits than tasks can hold at a time: each task gives its permit back at once.
const PERMITS: usize = u16::MAX as usize;

/// Set once. Tasks may wait for it before and after.
#[derive(Clone, Debug)]
pub(super) struct Closed(Arc<Semaphore>);

impl Closed {
    pub(super) fn new() -> Closed {
        Closed(Arc::new(Semaphore::new(0)))
    }

    pub(super) fn set(&self) {
        self.0.release(PERMITS);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.available() > 0
    }

    pub(super) async fn wait(&self) {
        drop(self.0.acquire(1).await);
    }
}
