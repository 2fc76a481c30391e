//! Reads a stream on the loop's own thread. The loop's poller reports when there is something to receive. The bytes
//! are received, and the end of the item is found, on the thread where the awaiting task will run. So no other thread
//! is woken for a request and its response.
//!
//! Nothing is received before a read asks for it. The descriptor is registered once, edge-triggered, when a read
//! first has to wait. After a receive that got less than there was room for, the next one comes after the next edge.
//! But the edge that reports the end of the stream comes only once. After that edge, receives continue until one has
//! returned the end.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::mem::ManuallyDrop;
use std::net;
use std::os::fd::{FromRawFd, RawFd};

use pyo3::prelude::*;

use super::progress::owned;
use crate::bridge::io_error::raise_io;
use crate::bridge::loop_handle::LoopHandle;
use crate::bridge::waiter::Waiter;
use crate::capi::class::ClassSpec;
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::methods::TypeSlot;
use crate::capi::native::{self, Dealloc, native_class};
use crate::capi::{Fatal, Raised, Ref, Slot, This};
use crate::event_loop::event_loop::EventLoop;
use crate::framing::{ReadRequest, TooLong};
use crate::kernel::completion::complete;
use crate::kernel::core::Core;
use crate::kernel::core::loop_ref::LoopRef;
use crate::kernel::source::Source;
use crate::memory::is_out_of_memory;
use crate::reactor::{Interest, Readiness};
use crate::runtime::net::{ReadProgress, Received};

/// A receive that fills its room counts as large if it has at least this many bytes.
const LARGE: usize = 64 * 1024;
/// This many large receives in a row mean that the sender is faster than the reader. Then it is worth the wake-ups
/// that a worker receives, and finds the ends of items, while the reader does other things.
const STREAK: u32 = 4;
/// The same holds for an item of which this many bytes are here and more are missing.
const LONG: usize = 1024 * 1024;

/// The readiness that is a reason to read: data, or an end, an error or urgent data, which only a read shows.
const ARRIVED: Readiness =
    Readiness::from_bits(Readiness::READABLE.bits() | Readiness::BEHIND_SHORT_READ.bits());

/// The reading half of a stream, which the loop's table of descriptors refers to.
#[derive(Debug)]
pub(super) struct LoopReader {
    /// The descriptor of the stream, or -1 once the stream is read elsewhere or closed.
    fd: Cell<RawFd>,
    received: RefCell<Received>,
    /// The loop whose poller has the descriptor. Empty before the first wait.
    event_loop: OnceCell<LoopRef>,
    /// The future that a waiting task waits for.
    future: Slot,
    /// The item that it waits for.
    request: RefCell<ReadRequest>,
    /// Nothing is there to be received before the next event.
    drained: Cell<bool>,
    /// An event has reported the end of the stream, an error or urgent data. Then more can be there after a short
    /// read.
    ending: Cell<bool>,
    /// How many large receives filled their room, one after the other.
    streak: Cell<u32>,
}

// `make_type` builds the class, and `create` makes every instance by `native::create`.
native_class!(unsafe LoopReader);

impl Dealloc for LoopReader {}

impl Traverse for LoopReader {
    fn traverse(&self, visitor: &mut Visitor) {
        self.event_loop.get().into_iter().for_each(|event_loop| visitor.reference(event_loop.object()));
        visitor.slot(&self.future);
    }

    /// Keeps the reference to the loop, because closing the stream needs it. The loop's own `clear` breaks the cycle.
    fn clear(&self) {
        self.future.clear();
    }
}

/// Makes the class. Called once, by the module's initialisation.
pub(super) fn make_type(py: Python<'_>) -> PyResult<()> {
    ClassSpec::<LoopReader>::new(c"wakeloop._core.TcpStreamReader")
        .slots(&[TypeSlot::dealloc()])
        .slots(&TypeSlot::collected())
        .build(py)
        .map(drop)
}

impl LoopReader {
    pub(super) fn create(fd: RawFd, limit: usize) -> Result<Ref, Raised> {
        let reader = native::create(LoopReader {
            fd: Cell::new(fd),
            received: RefCell::new(Received::new(limit)),
            event_loop: OnceCell::new(),
            future: Slot::empty(),
            request: RefCell::new(ReadRequest::All),
            drained: Cell::new(false),
            ending: Cell::new(false),
            streak: Cell::new(0),
        })?;
        if let Some(this) = reader.downcast::<LoopReader>() {
            this.track();
        }
        Ok(reader)
    }

    /// Returns the item, if it is here or can be received without waiting. `begin` says that it is a new item.
    pub(super) fn look(&self, request: &ReadRequest, begin: bool) -> Result<ReadProgress<Ref>, Raised> {
        let mut received = self.received.borrow_mut();
        if begin {
            received.begin();
        }
        let mut drained = self.drained.get() && self.event_loop.get().is_some();
        loop {
            match received.try_take(request, owned)? {
                ReadProgress::Pending if !drained && !self.is_behind(&received) => {
                    self.receive(&mut received, request).map_err(|error| raise_io(&error))?;
                }
                found => return Ok(found),
            }
            drained = self.drained.get();
        }
    }

    /// Drops a line that is too long.
    pub(super) fn discard(&self, line: TooLong) {
        self.received.borrow_mut().discard(line);
    }

    pub(super) fn at_eof(&self) -> bool {
        self.received.borrow().at_eof()
    }

    /// Receives once.
    ///
    /// # Errors
    /// `OutOfMemory`. Nothing was received then.
    fn receive(&self, received: &mut Received, request: &ReadRequest) -> io::Result<()> {
        // SAFETY: the stream's descriptor, which stays open at least until `release`, and is not closed here.
        let socket = ManuallyDrop::new(unsafe { net::TcpStream::from_raw_fd(self.fd.get()) });
        match received.receive(request, &*socket) {
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
                _ if is_out_of_memory(&error) => return Err(error),
                _ => received.fail(&error),
            },
        }
        Ok(())
    }

    /// Notes that the socket was used, so that the loop polls in its next turn: a peer on the same loop may be ready
    /// because of it.
    pub(super) fn note_io(&self) {
        if let Some(event_loop) = self.event_loop.get() {
            event_loop.object().hold(|| event_loop.core().note_io());
        }
    }

    /// Should the stream be read on the runtime from now on, ahead of the reader?
    pub(super) fn is_bulk(&self) -> bool {
        self.is_behind(&self.received.borrow())
    }

    fn is_behind(&self, received: &Received) -> bool {
        self.streak.get() >= STREAK || received.len() >= LONG
    }

    /// Makes the poller of `event_loop`, which runs on this thread, watch the descriptor. Returns false if that is
    /// not possible.
    pub(super) fn attach(this: This<'_, LoopReader>, event_loop: &Bound<'_, EventLoop>) -> bool {
        if let Some(own) = this.event_loop.get() {
            return own.object().as_ptr() == event_loop.as_ptr();
        }
        let fd = this.fd.get();
        if fd < 0 {
            return false;
        }
        let core = event_loop.get().outside();
        let watch = || {
            if !register(this.object().to_owned(), core, fd) {
                return false;
            }
            // The loop's section may suspend that of the reader, and another thread may close the stream meanwhile.
            let is_open = this.fd.get() >= 0;
            if !is_open {
                core.remove_source(fd, true);
            }
            is_open
        };
        core.borrow().hold(watch) && this.event_loop.set(core.loop_ref()).is_ok()
    }

    /// Completes `future` once `look` has another result than `Pending`. Returns false if that will not be, because
    /// another thread has closed the stream or moved it.
    pub(super) fn wait(&self, request: &ReadRequest, future: Ref) -> bool {
        if self.fd.get() < 0 {
            return false;
        }
        self.received.borrow_mut().give_back_memory();
        self.request.replace(request.clone());
        self.future.set(Some(future));
        true
    }

    /// Ends the wait of the read.
    pub(super) fn give_up(&self) {
        self.future.clear();
    }

    /// Ends the reading here, because the descriptor is closed or read elsewhere from now on. Returns what was
    /// received so far, and the task that waits.
    pub(super) fn release(&self, closed: bool) -> (Received, Option<Waiter>) {
        let fd = self.fd.replace(-1);
        let limit = self.received.borrow().limit();
        let received = self.received.replace(Received::new(limit));
        let Some(event_loop) = self.event_loop.get() else { return (received, None) };
        let future = self.future.take();
        event_loop.object().hold(|| event_loop.core().remove_source(fd, closed));
        let inbox = &event_loop.outside().inbox;
        (received, future.map(|future| Waiter::of(LoopHandle::Own(inbox.clone()), future)))
    }

    /// Handles an event. Returns the future of the task that waits, if it need not wait any longer.
    fn handle_event(&self, core: &Core, readiness: Readiness) -> Option<Ref> {
        if !readiness.intersects(ARRIVED) || self.fd.get() < 0 {
            return None;
        }
        self.drained.set(false);
        if readiness.intersects(Readiness::BEHIND_SHORT_READ) {
            self.ending.set(true);
        }
        if self.future.is_empty() {
            return None;
        }
        let (mut received, request) = (self.received.borrow_mut(), self.request.borrow());
        while !received.has(&request) && !self.is_behind(&received) {
            if self.drained.get() {
                return None;
            }
            let before = received.len();
            if self.receive(&mut received, &request).is_err() {
                // The read that waits tries again, and raises the error.
                break;
            }
            core.spins.note_bytes(received.len() - before);
        }
        self.future.take()
    }
}

impl Source for LoopReader {
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        match object
            .with_native(|reader: This<'_, LoopReader>| reader.handle_event(core, readiness))
            .flatten()
        {
            Some(future) => complete(core, &future),
            None => Ok(()),
        }
    }
}

/// Makes the loop's poller watch the descriptor for `reader`. Returns false if that is not possible. The caller is in the
/// loop's section.
fn register(reader: Ref, core: &Core, fd: RawFd) -> bool {
    // If somebody watches the descriptor with `add_reader` or `add_writer`, that watcher stays, and this fails.
    if core.fds.source(fd).is_some() || core.fds.watched(fd).is_some_and(|watched| watched.is_used()) {
        return false;
    }
    let Ok(token) = core.insert_source::<LoopReader>(fd, reader) else { return false };
    let registered = core.poller_to_change().map(|poller| poller.ensure_edge(fd, token, Interest::READ));
    if matches!(registered, Some(Ok(()))) {
        return true;
    }
    drop(core.fds.remove(fd));
    false
}
