//! Parks a thread, and unparks it from another.
//!
//! ```text
//!             unpark            park
//!   EMPTY ───────────▶ NOTIFIED ──────▶ EMPTY (returns at once)
//!     │ park
//!     ▼                unpark
//!   ASLEEP / IN_DRIVER ──────▶ NOTIFIED, and the sleeper is woken: ASLEEP by the thread's own token, IN_DRIVER by
//!                              the driver's eventfd
//! ```
//!
//! An `unpark` at any time before or during a `park` ends it. Several merge into one. `park` may also return
//! without one. User code on the thread may use `thread::park` itself: only the state here counts, so no wake
//! is lost if such code consumes the thread's token.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use super::super::driver::{self, Driver};
use super::super::shim::AtomicU8;
use super::super::shim::thread::{self, Thread};

const EMPTY: u8 = 0;
const ASLEEP: u8 = 1;
const IN_DRIVER: u8 = 2;
const NOTIFIED: u8 = 3;

/// One per worker. The worker parks; any thread may unpark.
#[derive(Debug, Default)]
pub(in super::super) struct Parker {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl Parker {
    /// Creates a parker for the current thread.
    pub(in super::super) fn current() -> Parker {
        let parker = Parker::default();
        parker.adopt();
        parker
    }

    /// Makes the current thread the one that parks here. Call it before the first `park`.
    pub(super) fn adopt(&self) {
        self.thread.get_or_init(thread::current);
    }

    /// Sleeps until unparked, on the thread's own token.
    pub(in super::super) fn park(&self) {
        if !self.enter(ASLEEP) {
            return;
        }
        loop {
            thread::park();
            if self.take_notification() {
                return;
            }
        }
    }

    /// As `park`, for about `limit` at most. Returns whether it was unparked.
    pub(super) fn park_timeout(&self, limit: Duration) -> bool {
        if !self.enter(ASLEEP) {
            return true;
        }
        thread::park_timeout(limit);
        // Ordering: Acquire pairs with `unpark`, as in `take_notification`. (No model shows it: loom's
        // `Thread::unpark` follows the swap without a gap.)
        self.state.swap(EMPTY, Acquire) == NOTIFIED
    }

    /// Sleeps in the driver, until unparked or until `has_work` says that the driver has woken work for this
    /// thread.
    pub(super) fn park_in(
        &self,
        driver: &mut Driver,
        handle: &driver::Handle,
        has_work: impl FnMut() -> bool,
    ) {
        self.park_while(|| driver.turn(handle, true), has_work);
    }

    /// As `park_in`, for a caller that waits in the driver in its own way: in `wait`.
    #[inline(always)]
    pub(super) fn park_while(&self, mut wait: impl FnMut(), mut has_work: impl FnMut() -> bool) {
        if !self.enter(IN_DRIVER) {
            return;
        }
        loop {
            wait();
            if has_work() {
                // Ordering: Acquire pairs with `unpark`, in case one came at the same time.
                self.state.swap(EMPTY, Acquire);
                return;
            }
            if self.take_notification() {
                return;
            }
        }
    }

    /// Whether the worker sleeps in the driver. The answer may be out of date.
    pub(super) fn is_in_driver(&self) -> bool {
        self.state.load(Relaxed) == IN_DRIVER
    }

    /// Ends the current or the next park.
    pub(in super::super) fn unpark(&self, driver: Option<&driver::Handle>) {
        // Ordering: Release passes what came before the wake to the woken thread. Acquire pairs with `enter`,
        // which comes after `adopt`: if ASLEEP is seen, so is the thread. (No model shows that: `OnceLock` is
        // not loom's.)
        match self.state.swap(NOTIFIED, AcqRel) {
            ASLEEP => {
                if let Some(thread) = self.thread.get() {
                    thread.unpark();
                }
            }
            IN_DRIVER => {
                if let Some(driver) = driver {
                    driver.unpark();
                }
            }
            _ => {}
        }
    }

    /// Whether an unpark is waiting to be taken.
    pub(in super::super) fn take_notification(&self) -> bool {
        // Ordering: Acquire pairs with the Release in `unpark`. A stray token may have ended the sleep before
        // the token of `unpark` came.
        self.state.compare_exchange(NOTIFIED, EMPTY, Acquire, Relaxed).is_ok()
    }

    /// Goes from EMPTY to a sleeping state. If there is a notification, takes it and returns false.
    fn enter(&self, asleep: u8) -> bool {
        // Ordering: Release pairs with the swap in `unpark`; Acquire, below, as in `take_notification`.
        match self.state.compare_exchange(EMPTY, asleep, Release, Relaxed) {
            Ok(_) => true,
            Err(_) => {
                self.state.swap(EMPTY, Acquire);
                false
            }
        }
    }
}
