//! The half of the driver that all threads share.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

#[cfg(all(test, wakeloop_loom))]
use super::model_reactor::{Poller, Registrar, Waker as PollWaker};
use super::registration::Registrations;
use super::timers::Timers;
use crate::poison::unpoisoned;
use crate::reactor::{Interest, Token};
#[cfg(not(all(test, wakeloop_loom)))]
use crate::reactor::{Poller, Registrar, Waker as PollWaker};
use crate::runtime::metrics::SpinCounters;
use crate::runtime::shim::{AtomicBool, Mutex};
use crate::runtime::trace::Tracer;
use crate::runtime::wakers::wake_all;

/// The token of the waker. Tokens of registrations have a clear highest bit.
pub(super) const WAKER: Token = Token(usize::MAX - 1);
/// One turn reports at most this many sockets. The others keep their place in the kernel's queue. So the tasks
/// of the reported sockets run while the memory that the kernel touched, and what was prefetched, is still in
/// the caches.
const EVENTS: usize = 64;
/// The half that all threads share.
pub(in super::super) struct Handle {
    system: OnceLock<System>,
    /// The new poller, until the other half takes it. Locked while the driver is opened.
    pub(super) opening: Mutex<Option<Poller>>,
    pub(in super::super) registrations: Registrations,
    pub(in super::super) timers: Timers,
    /// The thread that has the other half counts.
    pub(in super::super) spins: SpinCounters,
    closed: AtomicBool,
}

/// The system's side of an open driver.
struct System {
    registrar: Registrar,
    waker: PollWaker,
}

impl Handle {
    /// Creates the half of a driver that is not open yet.
    pub(super) fn new(tracer: Option<Arc<dyn Tracer>>) -> Handle {
        Handle {
            system: OnceLock::new(),
            opening: Mutex::new(None),
            registrations: Registrations::new(),
            timers: Timers::new(tracer),
            spins: SpinCounters::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Opens the driver unless it is open or was shut down. Returns whether this call opened it; then a worker
    /// has to wait in it from now on.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub(in super::super) fn open(&self) -> io::Result<bool> {
        if self.is_open() || self.is_closed() {
            return Ok(false);
        }
        let mut opening = unpoisoned(self.opening.lock());
        if self.is_open() {
            return Ok(false);
        }
        let poller = Poller::with_capacity(EVENTS)?;
        let system = System { registrar: poller.registrar()?, waker: poller.waker(WAKER)? };
        *opening = Some(poller);
        // This thread holds the lock and found the driver closed, so this is the first call.
        Ok(self.system.set(system).is_ok())
    }

    pub(in super::super) fn is_open(&self) -> bool {
        self.system.get().is_some()
    }

    /// Ends the current or the next wait.
    pub(in super::super) fn unpark(&self) {
        if let Some(system) = self.system.get() {
            // This fails only if the eventfd was closed, and it is ours.
            let _ = system.waker.wake();
        }
    }

    /// Registers a descriptor with the system.
    pub(super) fn register(&self, fd: RawFd, token: Token) -> io::Result<()> {
        let Some(system) = self.system.get() else { return Err(io::ErrorKind::NotConnected.into()) };
        system.registrar.register_edge(fd, token, Interest::BOTH)
    }

    pub(super) fn deregister(&self, fd: RawFd) {
        if let Some(system) = self.system.get() {
            // This fails if the descriptor was never registered, or if epoll was closed.
            let _ = system.registrar.deregister(fd);
        }
    }

    /// Whether a turn that does not block could find anything.
    pub(in super::super) fn needs_look(&self) -> bool {
        !self.registrations.is_empty() || self.has_due_timer()
    }

    pub(in super::super) fn has_due_timer(&self) -> bool {
        self.timers.has_due()
    }

    /// The runtime ends: from now on sockets return an error, and waiting sleeps are woken to panic.
    pub(in super::super) fn close(&self) {
        // Relaxed: see `is_closed`.
        self.closed.store(true, Relaxed);
        let mut ready = Vec::new();
        self.registrations.close(&mut ready);
        self.timers.close(&mut ready);
        wake_all(ready);
    }

    /// The answer is reliable under the lock of the table of registrations, which `close` takes after it has
    /// set the flag, and for the owner of a timer that `close` has fired.
    pub(in super::super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}
