//! How one thread sleeps and another wakes it.
//!
//! ```text
//!             unpark            park
//!   EMPTY ───────────▶ NOTIFIED ──────▶ EMPTY (returns at once)
//!     │ park
//!     ▼                unpark
//!   ASLEEP / IN_DRIVER ──────▶ NOTIFIED, and the sleeper is kicked: ASLEEP by the thread's own token, IN_DRIVER by
//!                              the driver's eventfd
//! ```
//!
//! One `unpark` that comes any time before or during a `park` ends it; several merge. `park` may also return
//! without one. User code that runs on the thread may use `thread::park` itself: the state here is what counts,
//! so a token that it eats is not missed.

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

/// One per worker; the worker parks, everyone may unpark.
#[derive(Debug, Default)]
pub(in super::super) struct Parker {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl Parker {
    /// A parker for the current thread.
    pub(in super::super) fn current() -> Parker {
        let parker = Parker::default();
        parker.adopt();
        parker
    }

    /// Makes the current thread the one that parks here. Before the first `park`.
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

    /// As `park`, for about `limit` at most. Whether it was unparked.
    pub(super) fn park_timeout(&self, limit: Duration) -> bool {
        if !self.enter(ASLEEP) {
            return true;
        }
        thread::park_timeout(limit);
        // Ordering: Acquire pairs with `unpark`, as in `take_notification`. (No model shows it: loom's `Thread::unpark`
        // follows on the swap without a gap.)
        self.state.swap(EMPTY, Acquire) == NOTIFIED
    }

    /// Sleeps in the driver until unparked or until `has_work` says that what the driver woke is for this thread.
    pub(super) fn park_in(
        &self,
        driver: &mut Driver,
        handle: &driver::Handle,
        mut has_work: impl FnMut() -> bool,
    ) {
        if !self.enter(IN_DRIVER) {
            return;
        }
        loop {
            driver.turn(handle, true);
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

    /// Whether the worker sleeps in the driver, as of a moment ago.
    pub(super) fn is_in_driver(&self) -> bool {
        self.state.load(Relaxed) == IN_DRIVER
    }

    /// Ends the current or the next park.
    pub(in super::super) fn unpark(&self, driver: Option<&driver::Handle>) {
        // Ordering: Release hands what came before the wake to the woken thread; Acquire pairs with `enter`, which
        // comes after `adopt`: who sees ASLEEP sees the thread. (No model shows that: `OnceLock` is not loom's.)
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
        // Ordering: Acquire pairs with the Release in `unpark`: a stray token may have ended the sleep before that of the
        // unpark came.
        self.state.compare_exchange(NOTIFIED, EMPTY, Acquire, Relaxed).is_ok()
    }

    /// From EMPTY to a sleeping state; false if a notification was there, which is then taken.
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
