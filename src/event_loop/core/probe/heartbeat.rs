//! The heartbeat of a running loop: what the loop does and since when, for a thread that looks without the GIL.
//!
//! - A loop has a heartbeat of its own while `run_forever` is active. Between runs it has [`NOBODY`]'s, which nobody
//!   reads.
//! - Only the loop's thread writes to it. Heartbeats are never freed: the next run takes one that has no loop.
//! - While a heartbeat reports the same moment, the run goes on, so the thread state and the loop that it names live.
//!
//! Any thread may read, and two loops may begin to run at once.

use std::iter;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, fence};

use pyo3::ffi;

use crate::capi::threads::ident;

/// What a loop does. The times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// It waits in the poll, or does not run.
    Idle,
    /// It is in a turn that began at this time.
    Turn(u64),
    /// It has polled, and waits for the GIL since this time.
    AwaitsGil(u64),
}

impl Beat {
    /// Since when the loop is busy.
    pub(crate) fn since(self) -> Option<u64> {
        match self {
            Beat::Idle => None,
            Beat::Turn(since) | Beat::AwaitsGil(since) => Some(since),
        }
    }
}

/// The bit that tells [`Beat::AwaitsGil`] from [`Beat::Turn`]; the clock does not reach it.
const AWAITS_GIL: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Heartbeat {
    /// The beat: 0 is idle.
    word: AtomicU64,
    taken: AtomicBool,
    event_loop: AtomicPtr<ffi::PyObject>,
    thread_state: AtomicPtr<ffi::PyThreadState>,
    /// `threading.get_ident()`.
    ident: AtomicU64,
    next: Option<&'static Heartbeat>,
}

/// The heartbeat of loops that do not run.
pub(crate) static NOBODY: Heartbeat = Heartbeat::new(None);

/// The first of all heartbeats of this process, null without one.
static FIRST: AtomicPtr<Heartbeat> = AtomicPtr::new(null_mut());

/// The heartbeats of this process. Those that no loop has are idle.
pub(crate) fn all() -> impl Iterator<Item = &'static Heartbeat> {
    // Ordering: Acquire pairs with the Release in `add`.
    // SAFETY: null, or stored by `add`, which leaks it.
    iter::successors(unsafe { FIRST.load(Acquire).as_ref() }, |heartbeat| heartbeat.next)
}

/// Called in a forked child: the loops of the parent's other threads do not run here.
pub(crate) fn forked() {
    FIRST.store(null_mut(), Relaxed);
}

/// Adds a heartbeat, which is taken.
fn add() -> &'static Heartbeat {
    let mut heartbeat = Box::new(Heartbeat::new(None));
    *heartbeat.taken.get_mut() = true;
    let heartbeat = Box::into_raw(heartbeat);
    let mut first = FIRST.load(Relaxed);
    loop {
        // SAFETY: nobody else knows the new heartbeat. `first` is null, or was stored here, and is never freed.
        unsafe { (*heartbeat).next = first.as_ref() };
        // Ordering: Release pairs with the Acquire in `all`.
        match FIRST.compare_exchange_weak(first, heartbeat, Release, Relaxed) {
            // SAFETY: it is never freed, and from now on it is shared.
            Ok(_) => return unsafe { &*heartbeat },
            Err(other) => first = other,
        }
    }
}

impl Heartbeat {
    const fn new(next: Option<&'static Heartbeat>) -> Heartbeat {
        Heartbeat {
            word: AtomicU64::new(0),
            taken: AtomicBool::new(false),
            event_loop: AtomicPtr::new(null_mut()),
            thread_state: AtomicPtr::new(null_mut()),
            ident: AtomicU64::new(0),
            next,
        }
    }

    /// Takes it for a loop. False if another loop has it.
    fn take(&self) -> bool {
        // Ordering: Acquire pairs with the Release in `end`: the stores of this run come after those of the last one.
        !self.taken.load(Relaxed) && self.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    /// A heartbeat for a loop that begins to run on this thread, which is attached.
    pub(crate) fn begin(event_loop: *mut ffi::PyObject) -> &'static Heartbeat {
        let heartbeat = all().find(|heartbeat| heartbeat.take()).unwrap_or_else(add);
        heartbeat.event_loop.store(event_loop, Relaxed);
        // SAFETY: this thread is attached.
        heartbeat.thread_state.store(unsafe { ffi::PyThreadState_Get() }, Relaxed);
        heartbeat.ident.store(ident(), Relaxed);
        // Ordering: pairs with the fence in `beat`. Who reads a beat of this run also reads the stores above.
        fence(Release);
        heartbeat
    }

    /// The run has ended.
    pub(crate) fn end(&self) {
        self.idle();
        // Ordering: Release pairs with the Acquire in `take`.
        self.taken.store(false, Release);
    }

    /// The loop is about to wait in the poll.
    #[inline(always)]
    pub(crate) fn idle(&self) {
        self.word.store(0, Relaxed);
    }

    /// A turn, or the part of it after the poll, begins.
    #[inline(always)]
    pub(crate) fn turn(&self, now: u64) {
        self.word.store(now, Relaxed);
    }

    /// The poll has returned, and the loop is about to wait for the GIL.
    #[inline(always)]
    pub(crate) fn awaits_gil(&self, now: u64) {
        self.word.store(now | AWAITS_GIL, Relaxed);
    }

    pub(crate) fn beat(&self) -> Beat {
        let word = self.word.load(Relaxed);
        // Ordering: pairs with the fence in `begin`.
        fence(Acquire);
        match word {
            0 => Beat::Idle,
            _ if word & AWAITS_GIL != 0 => Beat::AwaitsGil(word & !AWAITS_GIL),
            _ => Beat::Turn(word),
        }
    }

    /// The loop, as a borrowed reference.
    pub(crate) fn event_loop(&self) -> *mut ffi::PyObject {
        self.event_loop.load(Relaxed)
    }

    /// The thread state of the loop's thread.
    pub(crate) fn thread_state(&self) -> *mut ffi::PyThreadState {
        self.thread_state.load(Relaxed)
    }

    /// The loop's thread, by the number that `threading.get_ident()` gives.
    pub(crate) fn ident(&self) -> u64 {
        self.ident.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_reports_what_the_loop_does_and_since_when() {
        let heartbeat = Heartbeat::new(None);
        assert_eq!(heartbeat.beat(), Beat::Idle);
        heartbeat.turn(5);
        assert_eq!((heartbeat.beat(), heartbeat.beat().since()), (Beat::Turn(5), Some(5)));
        heartbeat.awaits_gil(7);
        assert_eq!((heartbeat.beat(), heartbeat.beat().since()), (Beat::AwaitsGil(7), Some(7)));
        heartbeat.idle();
        assert_eq!((heartbeat.beat(), heartbeat.beat().since()), (Beat::Idle, None));
    }
}
