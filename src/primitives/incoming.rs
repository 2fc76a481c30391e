//! Items that a socket receives for tasks: connections, datagrams.
//!
//! - An item is not lost between the worker that received it and a task that was cancelled meanwhile.
//! - When the socket is closed, every task that waits for it gets ConnectionAbortedError.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;

use super::closed::Closed;
use crate::bridge::awaitable::Outcome;
use crate::poison::unpoisoned;
use crate::runtime::sync::Notify;

/// The state that the tasks waiting for one socket share.
#[derive(Debug)]
pub(super) struct Incoming<T> {
    /// The items that came back. The next receiver takes from here first.
    returned: Mutex<VecDeque<T>>,
    /// Wakes a waiting receiver when an item comes back.
    item_returned: Notify,
    closed: Closed,
}

impl<T: Send + 'static> Incoming<T> {
    pub(super) fn new() -> Arc<Incoming<T>> {
        Arc::new(Incoming { returned: Mutex::default(), item_returned: Notify::new(), closed: Closed::new() })
    }

    pub(super) fn close(&self) {
        self.closed.set();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_set()
    }

    /// The result of `work`, or an error if the socket is closed first.
    pub(super) async fn unless_closed<R>(&self, work: impl Future<Output = io::Result<R>>) -> io::Result<R> {
        let aborted = || io::Error::from_raw_os_error(libc::ECONNABORTED);
        let done = crate::select! {
            () = self.closed.wait() => Err(aborted()),
            done = work => done,
        };
        // The work may have failed because of the close.
        done.map_err(|error| if self.is_closed() { aborted() } else { error })
    }

    /// Returns an item that came back, or the one that `receive` gets, as the Python object that `make` makes of it.
    pub(super) async fn receive(
        self: &Arc<Self>,
        receive: impl Future<Output = io::Result<T>>,
        make: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> io::Result<Outcome> {
        let received = self.unless_closed(async {
            let mut receive = pin!(receive);
            loop {
                if let Some(item) = self.returned().pop_front() {
                    return Ok(item);
                }
                crate::select! {
                    () = self.item_returned.notified() => {},
                    received = receive.as_mut() => return received,
                }
            }
        });
        let mut delivery = Delivery { item: Some(received.await?), home: self.clone() };
        Ok(Outcome::value(move |py| match delivery.item.take() {
            Some(item) => make(py, item),
            None => Ok(py.None()),
        }))
    }
}

impl<T> Incoming<T> {
    fn returned(&self) -> MutexGuard<'_, VecDeque<T>> {
        // A panic cannot leave the queue half changed: under this lock items are only pushed and popped.
        unpoisoned(self.returned.lock())
    }
}

/// An item on its way to a task. If this is dropped before the task has taken the item, the item goes back.
struct Delivery<T> {
    item: Option<T>,
    home: Arc<Incoming<T>>,
}

impl<T> Drop for Delivery<T> {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            self.home.returned().push_front(item);
            self.home.item_returned.notify_one();
        }
    }
}
