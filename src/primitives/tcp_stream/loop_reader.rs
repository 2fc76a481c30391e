//! Reading a stream on the loop's own thread: the loop's poller says when there is something to receive, and the
//! bytes are received, and the end of the item looked for, where the awaiting task will run. No other thread is woken
//! for a request and its response.
//!
//! Nothing is received before somebody wants it. The descriptor is registered once, edge-triggered, when a read first
//! has to wait. A receive that got less than there was room for was the last until the next edge; but an edge that told
//! of the end of the stream comes only once, and then the reads go on until the end is read.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::ManuallyDrop;
use std::net;
use std::os::fd::{FromRawFd, RawFd};

use pyo3::prelude::*;

use super::found::Found;
use crate::bridge::loop_handle::LoopHandle;
use crate::bridge::waiter::Waiter;
use crate::capi::{Fatal, Raised, Ref, Slot};
use crate::event_loop::completion::complete;
use crate::event_loop::core::{Core, core_of};
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::source::Source;
use crate::reactor::{Interest, Readiness};
use crate::runtime::net::{Received, Want};

/// A receive of at least so many bytes that fills its room ...
const LARGE: usize = 64 * 1024;
/// ... and so many of them in a row mean that the sender is faster than the reader. Then a thread that receives and
/// looks for the ends of items meanwhile is worth its wake-ups ...
const STREAK: u32 = 4;
/// ... as it is for an item of which so many bytes are here and more to come.
const LONG: usize = 1024 * 1024;

/// What is a reason to read: data, or some end that a read will tell of.
const ARRIVED: Readiness =
    Readiness::from_bits(Readiness::READABLE.bits() | Readiness::BEHIND_SHORT_READ.bits());

/// The reading half of a stream, which the loop's table of descriptors refers to.
#[pyclass(module = "wakeloop._core", name = "TcpStreamReader", frozen)]
#[derive(Debug)]
pub(super) struct LoopReader {
    /// The stream's; -1 once it is read elsewhere or closed.
    fd: Cell<RawFd>,
    received: RefCell<Received>,
    /// The loop whose poller has the descriptor. Empty before the first wait.
    event_loop: Slot,
    /// What the waiting task waits for, and what it wants.
    future: Slot,
    want: RefCell<Want>,
    /// Nothing is there to be received before the next event.
    drained: Cell<bool>,
    /// An event has told that the stream comes to its end, or of urgent data: a short read need not be the last.
    ending: Cell<bool>,
    /// How many large receives filled their room, one after the other.
    streak: Cell<u32>,
}

// SAFETY: used with the GIL held only (the module is `gil_used`).
unsafe impl Send for LoopReader {}
// SAFETY: as above.
unsafe impl Sync for LoopReader {}

#[pymethods]
impl LoopReader {
    fn __traverse__(&self, visit: pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::gc::PyTraverseError> {
        self.event_loop.visit_with(&visit)?;
        self.future.visit_with(&visit)
    }

    /// The loop stays: the stream's end needs it, and the loop's own clear breaks the cycle.
    fn __clear__(&self) {
        self.future.clear();
    }
}

impl LoopReader {
    pub(super) fn create(py: Python<'_>, fd: RawFd, limit: usize) -> PyResult<Ref> {
        let reader = LoopReader {
            fd: Cell::new(fd),
            received: RefCell::new(Received::new(limit)),
            event_loop: Slot::empty(),
            future: Slot::empty(),
            want: RefCell::new(Want::All),
            drained: Cell::new(false),
            ending: Cell::new(false),
            streak: Cell::new(0),
        };
        Ok(Bound::new(py, reader)?.into_any().into())
    }

    /// # Safety
    /// `object` is a LoopReader.
    pub(super) unsafe fn of(object: &Ref) -> &LoopReader {
        // SAFETY: the caller's word; the class is frozen, so shared references are all there is.
        unsafe {
            let py = Python::assume_attached();
            let bound = Borrowed::from_ptr(py, object.as_ptr()).cast_unchecked::<LoopReader>();
            &*std::ptr::from_ref(bound.get())
        }
    }

    /// The item, if it is here or can be received without waiting. `begin`: it is a new one.
    pub(super) fn look(&self, want: &Want, begin: bool) -> Result<Found, Raised> {
        let mut received = self.received.borrow_mut();
        if begin {
            received.begin();
        }
        let mut drained = self.drained.get() && !self.event_loop.is_empty();
        loop {
            match Found::of(received.take(want))? {
                Found::Nothing if !drained && !self.is_behind(&received) => self.receive(&mut received, want),
                found => return Ok(found),
            }
            drained = self.drained.get();
        }
    }

    /// One receive.
    fn receive(&self, received: &mut Received, want: &Want) {
        // SAFETY: the stream's descriptor, which stays open at least until `release`, and is not closed here.
        let socket = ManuallyDrop::new(unsafe { net::TcpStream::from_raw_fd(self.fd.get()) });
        match received.receive(want, &*socket) {
            Ok((got, short)) => {
                self.drained.set(short && !self.ending.get());
                if short {
                    self.streak.set(0);
                } else if got >= LARGE {
                    self.streak.set(self.streak.get() + 1);
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    self.drained.set(true);
                    self.streak.set(0);
                }
                io::ErrorKind::Interrupted => {}
                _ => received.fail(&error),
            },
        }
    }

    /// The socket was used: what that has set off elsewhere in the loop is not to wait behind its callbacks.
    pub(super) fn touch(&self) {
        if !self.event_loop.is_empty() {
            // SAFETY: `attach` put one of our loops there.
            unsafe { core_of(self.event_loop.as_ptr()) }.note_io();
        }
    }

    /// Is it time to read elsewhere, ahead of the reader?
    pub(super) fn is_bulk(&self) -> bool {
        self.is_behind(&self.received.borrow())
    }

    fn is_behind(&self, received: &Received) -> bool {
        self.streak.get() >= STREAK || received.len() >= LONG
    }

    /// Sees to it that the poller of `event_loop`, which runs on this thread, watches the descriptor. False if that
    /// cannot be.
    pub(super) fn attach(&self, object: &Ref, event_loop: &Bound<'_, EventLoop>) -> bool {
        if !self.event_loop.is_empty() {
            return self.event_loop.as_ptr() == event_loop.as_ptr();
        }
        let (core, fd) = (event_loop.get().core(), self.fd.get());
        // Who watches the descriptor by its number goes on doing so.
        if fd < 0
            || core.fds.source(fd).is_some()
            || core.fds.watched(fd).is_some_and(|watched| watched.is_used())
        {
            return false;
        }
        let Ok(token) = core.insert_source::<Reading>(fd, object.clone_ref()) else {
            return false;
        };
        let registered = core.poller().map(|poller| match poller.register_edge(fd, token, Interest::READ) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                poller.reregister_edge(fd, token, Interest::READ)
            }
            other => other,
        });
        if !matches!(registered, Some(Ok(()))) {
            drop(core.fds.remove(fd));
            return false;
        }
        self.event_loop.set(Some(Ref::from(event_loop.as_any().clone())));
        true
    }

    /// `future` is completed once `look` has something else to say than before.
    pub(super) fn wait(&self, want: &Want, future: Ref) {
        self.received.borrow_mut().rest();
        self.want.replace(want.clone());
        self.future.set(Some(future));
    }

    /// Nobody waits any more.
    pub(super) fn give_up(&self) {
        self.future.clear();
    }

    /// The descriptor is closed or read elsewhere from now on. What was received so far, and the task that waits.
    pub(super) fn release(&self, closed: bool) -> (Received, Option<Waiter>) {
        let fd = self.fd.replace(-1);
        let limit = self.received.borrow().limit();
        let received = self.received.replace(Received::new(limit));
        let (event_loop, future) = (self.event_loop.take(), self.future.take());
        let Some(event_loop) = event_loop else { return (received, None) };
        // SAFETY: `attach` put one of our loops there.
        let core = unsafe { core_of(event_loop.as_ptr()) };
        core.remove_source(fd, closed);
        (received, future.map(|future| Waiter::of(LoopHandle::Own(core.inbox.clone()), future)))
    }
}

/// What the descriptor's token leads to.
#[derive(Debug)]
struct Reading;

impl Source for Reading {
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        // SAFETY: `attach` put a LoopReader there.
        let reader = unsafe { LoopReader::of(object) };
        if !readiness.intersects(ARRIVED) || reader.fd.get() < 0 {
            return Ok(());
        }
        reader.drained.set(false);
        if readiness.intersects(Readiness::BEHIND_SHORT_READ) {
            reader.ending.set(true);
        }
        if reader.future.is_empty() {
            return Ok(());
        }
        {
            let (mut received, want) = (reader.received.borrow_mut(), reader.want.borrow());
            while !received.has(&want) && !reader.is_behind(&received) {
                if reader.drained.get() {
                    return Ok(());
                }
                reader.receive(&mut received, &want);
            }
        }
        match reader.future.take() {
            Some(future) => complete(core, &future),
            None => Ok(()),
        }
    }
}
