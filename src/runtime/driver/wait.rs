//! The half of the driver that waits.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::handle::{Handle, WAKER};
#[cfg(all(test, wakeloop_loom))]
use super::model_reactor::Poller;
use crate::poison::unpoisoned;
#[cfg(not(all(test, wakeloop_loom)))]
use crate::reactor::Poller;
use crate::reactor::Wait;
use crate::runtime::clock;
use crate::runtime::metrics::SpinCounters;
use crate::runtime::shim::{spin_setting, system_wait, thread, thread_cell};
use crate::runtime::trace::Tracer;
use crate::runtime::wakers::wake_all;
use crate::spin::{Clock, SpinPolicy};

/// How long to pause after the poller failed.
const BROKEN_WAIT: Duration = Duration::from_millis(10);

thread_cell! {
    /// How many bytes this thread has received since it last had the driver.
    static RECEIVED: u64 = 0;
}

/// This thread has received so many bytes.
#[inline(always)]
pub(in super::super) fn note_received(bytes: usize) {
    RECEIVED.set(RECEIVED.get() + bytes as u64);
}

/// The half that waits.
pub(in super::super) struct Driver {
    /// Present from the first turn after opening.
    poller: Option<Poller>,
    spins: SpinPolicy,
    /// How many there were.
    events: u64,
    /// The wakers of the current turn, kept for its capacity.
    ready: Vec<Waker>,
}

impl Driver {
    /// Creates a driver that is not open yet.
    pub(in super::super) fn new(tracer: Option<Arc<dyn Tracer>>) -> (Driver, Handle) {
        let handle = Handle::new(tracer);
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
    pub(in super::super) fn turn(&mut self, handle: &Handle, block: bool) {
        let wait = if block { handle.timers.begin_wait() } else { Wait::Not };
        // Without sockets a look is not needed. A wait is, because it also listens to the waker.
        if block || !handle.registrations.is_empty() {
            self.poll(handle, wait, block);
        }
        handle.timers.end_wait(&mut self.ready);
        wake_all(self.ready.drain(..));
    }

    /// As `turn`, without timers. The simulation of the clock fires those.
    pub(in super::super) fn turn_without_timers(&mut self, handle: &Handle, wait: Wait) {
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
