//! The heartbeat of a running loop: what the loop does and since when, for a thread that looks without the GIL.
//!
//! - A loop's heartbeat is in its entry of the [registry](super::registry). Between runs the loop writes to
//!   [`NOBODY`]'s, which nobody reads.
//! - Only the loop's thread writes to it.
//! - While a heartbeat reports the same moment, the run goes on, so the thread state and the loop that it names live.
//!
//! Any thread may read.

use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64, fence};

use pyo3::ffi;

use crate::capi::threads::ident;

/// What a loop does. The times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// It waits in the poll since this time; 0 if it does not run.
    Idle(u64),
    /// It is in a turn that began at this time.
    Turn(u64),
    /// It has polled, and waits for the GIL since this time.
    AwaitsGil(u64),
}

impl Beat {
    /// Since when the loop is busy.
    pub(crate) fn since(self) -> Option<u64> {
        match self {
            Beat::Idle(_) => None,
            Beat::Turn(since) | Beat::AwaitsGil(since) => Some(since),
        }
    }

    /// How long the loop has been waiting in the poll at `now`.
    pub(crate) fn waited(self, now: u64) -> u64 {
        match self {
            Beat::Idle(since @ 1..) => now.saturating_sub(since),
            _ => 0,
        }
    }
}

/// The bits that tell [`Beat::AwaitsGil`] and [`Beat::Idle`] from [`Beat::Turn`]; the clock does not reach them.
const AWAITS_GIL: u64 = 1 << 63;
const IDLE: u64 = 1 << 62;

#[derive(Debug)]
pub(crate) struct Heartbeat {
    /// The beat: 0 while the loop does not run.
    word: AtomicU64,
    event_loop: AtomicPtr<ffi::PyObject>,
    thread_state: AtomicPtr<ffi::PyThreadState>,
    /// `threading.get_ident()`.
    ident: AtomicU64,
}

/// The heartbeat of loops that do not run.
pub(crate) static NOBODY: Heartbeat = Heartbeat::new();

impl Heartbeat {
    pub(super) const fn new() -> Heartbeat {
        Heartbeat {
            word: AtomicU64::new(0),
            event_loop: AtomicPtr::new(null_mut()),
            thread_state: AtomicPtr::new(null_mut()),
            ident: AtomicU64::new(0),
        }
    }

    /// The loop begins to run on this thread, which is attached.
    pub(crate) fn begin(&self, event_loop: *mut ffi::PyObject) {
        self.event_loop.store(event_loop, Relaxed);
        // SAFETY: this thread is attached.
        self.thread_state.store(unsafe { ffi::PyThreadState_Get() }, Relaxed);
        self.ident.store(ident(), Relaxed);
        // Ordering: pairs with the fence in `beat`. Who reads a beat of this run also reads the stores above.
        fence(Release);
    }

    /// The run has ended.
    pub(crate) fn end(&self) {
        self.word.store(0, Relaxed);
    }

    /// The loop is about to wait in the poll.
    #[inline(always)]
    pub(crate) fn idle(&self, now: u64) {
        self.word.store(now | IDLE, Relaxed);
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
            0 => Beat::Idle(0),
            _ if word & IDLE != 0 => Beat::Idle(word & !IDLE),
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
        let heartbeat = Heartbeat::new();
        assert_eq!(heartbeat.beat(), Beat::Idle(0));
        heartbeat.turn(5);
        assert_eq!((heartbeat.beat(), heartbeat.beat().since()), (Beat::Turn(5), Some(5)));
        heartbeat.awaits_gil(7);
        assert_eq!((heartbeat.beat(), heartbeat.beat().since()), (Beat::AwaitsGil(7), Some(7)));
        heartbeat.idle(9);
        assert_eq!((heartbeat.beat(), heartbeat.beat().since()), (Beat::Idle(9), None));
        assert_eq!((heartbeat.beat().waited(12), Beat::Turn(5).waited(12)), (3, 0));
        heartbeat.end();
        assert_eq!((heartbeat.beat(), heartbeat.beat().waited(12)), (Beat::Idle(0), 0));
    }
}
