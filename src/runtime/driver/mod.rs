//! The driver: waits for sockets and timers together.
//!
//! [`Driver`] is the half that waits; at most one thread at a time has it. [`Handle`] is the half that all
//! threads use to register a socket, to arm or cancel a timer, or to end the wait.
//!
//! A driver starts closed, and is opened when a socket or a timer is first used. So a runtime that uses neither
//! opens no descriptors.
//!
//! Arming a timer that is due before the wait ends also ends the wait, so that the next wait can be shorter.
//! One lock guards both the heap and whether, and until when, a thread waits, so no deadline is missed.

#[cfg(all(test, wakeloop_loom))]
#[path = "../../../tests/models/driver/reactor.rs"]
mod model_reactor;
mod registration;
mod timers;

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../../tests/models/driver/readiness_and_timers.rs"]
mod model;

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use super::clock;
use super::metrics::SpinCounters;
use super::shim::{AtomicBool, Mutex, spin_setting, system_wait, thread, thread_cell};
use super::trace::Tracer;
use super::unpoisoned;
use super::wakers::wake_all;
use crate::reactor::{Interest, Token, Wait};
#[cfg(not(all(test, wakeloop_loom)))]
use crate::reactor::{Poller, Registrar, Waker as PollWaker};
use crate::spin::{Clock, SpinPolicy};
#[cfg(all(test, wakeloop_loom))]
use model_reactor::{Poller, Registrar, Waker as PollWaker};
use registration::Registrations;
use timers::Timers;

pub(super) use registration::{Direction, Registration};
pub(super) use timers::{Armed, TimerEntry};

/// The token of the waker. Tokens of registrations have a clear highest bit.
const WAKER: Token = Token(usize::MAX - 1);
/// One turn reports at most this many sockets. The others keep their place in the kernel's queue. So the tasks
/// of the reported sockets run while the memory that the kernel touched, and what was prefetched, is still in
/// the caches.
const EVENTS: usize = 64;
/// How long to pause after the poller failed.
const BROKEN_WAIT: Duration = Duration::from_millis(10);

thread_cell! {
    /// How many bytes this thread has received since it last had the driver.
    static RECEIVED: u64 = 0;
}

/// This thread has received so many bytes.
#[inline(always)]
pub(super) fn note_received(bytes: usize) {
    RECEIVED.set(RECEIVED.get() + bytes as u64);
}

/// The half that waits.
pub(super) struct Driver {
    /// Present from the first turn after opening.
    poller: Option<Poller>,
    spins: SpinPolicy,
    /// How many there were.
    events: u64,
    /// The wakers of the current turn, kept for its capacity.
    ready: Vec<Waker>,
}

/// The half that all threads share.
pub(super) struct Handle {
    system: OnceLock<System>,
    /// The new poller, until the other half takes it. Locked while the driver is opened.
    opening: Mutex<Option<Poller>>,
    pub(super) registrations: Registrations,
    pub(super) timers: Timers,
    /// The thread that has the other half counts.
    pub(super) spins: SpinCounters,
    closed: AtomicBool,
}

/// The system's side of an open driver.
struct System {
    registrar: Registrar,
    waker: PollWaker,
}

impl Driver {
    /// Creates a driver that is not open yet.
    pub(super) fn new(tracer: Option<Arc<dyn Tracer>>) -> (Driver, Handle) {
        let handle = Handle {
            system: OnceLock::new(),
            opening: Mutex::new(None),
            registrations: Registrations::new(),
            timers: Timers::new(tracer),
            spins: SpinCounters::default(),
            closed: AtomicBool::new(false),
        };
        (
            Driver {
                poller: None,
                spins: SpinPolicy::new(spin_setting(), Clock::Process),
                events: 0,
                ready: Vec::new(),
            },
            handle,
        )
    }

    /// Waits until a socket is ready, a timer is due, or `unpark` is called. If `block` is false, it looks
    /// without waiting. Wakes the tasks concerned.
    pub(super) fn turn(&mut self, handle: &Handle, block: bool) {
        let wait = if block { handle.timers.begin_wait() } else { Wait::Not };
        // Without sockets a look is not needed. A wait is, because it also listens to the waker.
        if block || !handle.registrations.is_empty() {
            self.poll(handle, wait, block);
        }
        handle.timers.end_wait(&mut self.ready);
        wake_all(self.ready.drain(..));
    }

    /// As `turn`, without timers. The simulation of the clock fires those.
    pub(super) fn turn_without_timers(&mut self, handle: &Handle, wait: Wait) {
        self.poll(handle, wait, wait != Wait::Not);
        wake_all(std::mem::take(&mut self.ready));
    }

    /// Looks at the sockets, or waits for them, and takes out the wakers concerned.
    #[inline(always)]
    fn poll(&mut self, handle: &Handle, wait: Wait, block: bool) {
        if self.poller.is_none() {
            self.poller = unpoisoned(handle.opening.lock()).take();
        }
        let Some(poller) = &mut self.poller else { return };
        self.spins.note_bytes(RECEIVED.replace(0) as usize);
        match poll(poller, system_wait(wait), &self.spins, &handle.spins, self.events) {
            Ok(()) => {
                self.events += poller.events().count() as u64;
                let events = poller.events().filter(|event| event.token != WAKER);
                handle.registrations.dispatch(events, &mut self.ready);
            }
            // Treat it as a wait without events. An error other than an interruption will come again, even forever
            // if the program has closed all descriptors of the process; tasks and timers continue.
            Err(error) if block && error.kind() != io::ErrorKind::Interrupted => {
                thread::sleep(Duration::from_nanos(wait.nanos()).min(BROKEN_WAIT));
            }
            Err(_) => {}
        }
    }
}

/// Waits in the system, and may begin with a spin.
#[inline(always)]
fn poll(
    poller: &mut Poller,
    wait: Wait,
    spins: &SpinPolicy,
    counters: &SpinCounters,
    events: u64,
) -> io::Result<()> {
    if wait == Wait::Not {
        return poller.poll(wait);
    }
    let start = clock::nanos();
    let Some(until) = spins.is_likely().then(|| spins.begin(start, wait.nanos(), events)).flatten() else {
        let polled = poller.poll(wait);
        spins.note_sleep(clock::nanos() - start);
        return polled;
    };
    poller.spin(until, clock::nanos)?;
    let nanos = clock::nanos() - start;
    let found = poller.events().next().is_some();
    spins.note_spin(found, nanos);
    counters.note(found, nanos);
    if found { Ok(()) } else { poller.poll(wait) }
}

impl Handle {
    /// Opens the driver unless it is open or was shut down. Returns whether this call opened it; then a worker
    /// has to wait in it from now on.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub(super) fn open(&self) -> io::Result<bool> {
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

    pub(super) fn is_open(&self) -> bool {
        self.system.get().is_some()
    }

    /// Ends the current or the next wait.
    pub(super) fn unpark(&self) {
        if let Some(system) = self.system.get() {
            // This fails only if the eventfd was closed, and it is ours.
            let _ = system.waker.wake();
        }
    }

    /// Registers a descriptor with the system.
    fn register(&self, fd: RawFd, token: Token) -> io::Result<()> {
        let Some(system) = self.system.get() else { return Err(io::ErrorKind::NotConnected.into()) };
        system.registrar.register_edge(fd, token, Interest::BOTH)
    }

    fn deregister(&self, fd: RawFd) {
        if let Some(system) = self.system.get() {
            // This fails if the descriptor was never registered, or if epoll was closed.
            let _ = system.registrar.deregister(fd);
        }
    }

    /// Whether a turn that does not block could find anything.
    pub(super) fn needs_look(&self) -> bool {
        !self.registrations.is_empty() || self.has_due_timer()
    }

    pub(super) fn has_due_timer(&self) -> bool {
        self.timers.has_due()
    }

    /// The runtime ends: from now on sockets return an error, and waiting sleeps are woken to panic.
    pub(super) fn close(&self) {
        // Relaxed: see `is_closed`.
        self.closed.store(true, Relaxed);
        let mut ready = Vec::new();
        self.registrations.close(&mut ready);
        self.timers.close(&mut ready);
        wake_all(ready);
    }

    /// The answer is reliable under the lock of the table of registrations, which `close` takes after it has
    /// set the flag, and for the owner of a timer that `close` has fired.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}
