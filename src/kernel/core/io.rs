//! The poller, and its events that have not been dispatched yet.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use crate::capi::loop_cell::LoopQueue;
use crate::reactor::{Event, Poller, Token, Waker};

/// How many events one poll returns at most. The kernel keeps further events for the next poll.
const EVENTS: usize = 1024;
/// The waker's token. No entry of the table ever has its generation.
pub(crate) const WAKER: Token = Token(usize::MAX - 1);

/// Creates a poller for a loop, and its waker.
pub(crate) fn new_poller() -> io::Result<(Poller, Waker)> {
    let poller = Poller::with_capacity(EVENTS)?;
    let waker = poller.waker(WAKER)?;
    Ok((poller, waker))
}

#[derive(Debug)]
pub(crate) struct Io {
    /// Borrowed during a poll, also while the GIL is released.
    poller: RefCell<Option<Poller>>,
    fd: Cell<Option<RawFd>>,
    /// The events of the last poll.
    pub(crate) events: LoopQueue<Event>,
    /// Events for sources that ask to be called in the next turn, although the poller will not report them.
    pub(crate) requeued: LoopQueue<Event>,
    /// Descriptors whose registration other threads wanted to change while a thread was waiting in the poller.
    deferred: RefCell<Vec<RawFd>>,
}

impl Io {
    pub(crate) fn new(poller: Poller) -> Io {
        Io {
            fd: Cell::new(Some(poller.as_raw_fd())),
            poller: RefCell::new(Some(poller)),
            events: LoopQueue::default(),
            requeued: LoopQueue::default(),
            deferred: RefCell::default(),
        }
    }

    /// The poller; `None` if the loop is closed, or if a thread is waiting in it.
    pub(crate) fn poller(&self) -> Option<std::cell::Ref<'_, Poller>> {
        std::cell::Ref::filter_map(self.poller.try_borrow().ok()?, Option::as_ref).ok()
    }

    /// The poller, for a poll.
    pub(crate) fn poller_mut(&self) -> Option<std::cell::RefMut<'_, Poller>> {
        std::cell::RefMut::filter_map(self.poller.try_borrow_mut().ok()?, Option::as_mut).ok()
    }

    /// The poller's descriptor; `None` once the loop is closed.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.fd.get()
    }

    /// Replaces the poller; `None` closes it. No thread may be waiting in it.
    pub(crate) fn set_poller(&self, poller: Option<Poller>) {
        self.fd.set(poller.as_ref().map(AsRawFd::as_raw_fd));
        drop(self.events.take());
        drop(self.poller.replace(poller));
    }

    /// Queues the events of a poll, and returns their number.
    #[inline(always)]
    pub(crate) fn extend(&self, events: impl Iterator<Item = Event>) -> usize {
        let before = self.events.len();
        events.for_each(|event| self.events.push(event));
        self.events.len() - before
    }

    /// Moves the requeued events to the queue, before those of the poll. A level-triggered poller, as asyncio has, also
    /// reports what it has reported before ahead of what has become ready since.
    #[inline(always)]
    pub(crate) fn queue_requeued(&self) {
        while let Some(event) = self.requeued.pop_last_if(|_| true) {
            self.events.push_first(event);
        }
    }

    /// Remembers a change of registration until the thread has left the poller.
    pub(crate) fn defer(&self, fd: RawFd) {
        self.deferred.borrow_mut().push(fd);
    }

    pub(crate) fn take_deferred(&self) -> Vec<RawFd> {
        self.deferred.take()
    }

    /// Drops all events.
    pub(crate) fn clear(&self) {
        drop((self.events.take(), self.requeued.take()));
    }
}
