//! The time that a busy loop gives other threads to take the GIL.
//!
//! A thread that waits for the GIL is let in by the interpreter when it has waited for a whole switch interval (5 ms) in
//! which the loop did not give it up. A loop that always finds events gives it up in each poll, and has it back before the
//! thread is awake, whose wait then begins anew: it may stand there for long. So the loop gives threads a chance: for so
//! long that one that waits wakes and gets it, the loop stays away.
//!
//! Who waits is not known. What is: whether there are other threads of Python's at all; how many jobs are awaited, whose
//! threads want the GIL when they begin and when they end; that a thread has called in; and that one had the GIL when the
//! loop came back for it. After any of these chances come often for a while, else as often as a thread is to wait at most.
//!
//! The loop thread only, or any thread with the GIL.

use std::cell::Cell;

use crate::capi::threads::is_only_thread;

/// How often there is a chance while threads seem to want it, in nanoseconds.
const OFTEN: u64 = 300_000;
/// How often else: as long as a thread waits at most if the loop does not give up the GIL at all.
const RARELY: u64 = 5_000_000;
/// How long they seem to want it after the last sign that one does: a few times what a round trip takes that has to wait
/// for a chance.
const SIGN_HOLDS: u64 = 50_000_000;
/// So long is a chance, in nanoseconds: the time in which a thread wakes that waits for the GIL.
pub(super) const CHANCE: u64 = 20_000;

/// When chances are due. Times are those of the monotonic clock, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Chances {
    next: Cell<u64>,
    every: Cell<u64>,
    /// Until when the last sign holds.
    wanted_until: Cell<u64>,
    /// There was a sign since the last look.
    sign: Cell<bool>,
}

impl Chances {
    pub(crate) fn new() -> Chances {
        Chances {
            next: Cell::new(0),
            every: Cell::new(RARELY),
            wanted_until: Cell::new(0),
            sign: Cell::new(false),
        }
    }

    #[inline(always)]
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.next.get()
    }

    /// A chance is due: is there anybody to take it? Whatever the answer, the next one is due later.
    #[cold]
    pub(super) fn is_for_somebody(&self, now: u64, jobs: bool) -> bool {
        if self.sign.take() || jobs {
            self.wanted_until.set(now + SIGN_HOLDS);
        }
        let alone = is_only_thread();
        self.every.set(if !alone && now < self.wanted_until.get() { OFTEN } else { RARELY });
        self.given(now);
        !alone
    }

    /// The loop was away from the GIL for long enough, and came back at `now`.
    #[inline(always)]
    pub(super) fn given(&self, now: u64) {
        self.next.set(now + self.every.get());
    }

    /// A thread has, or just had, the GIL: it will want it again.
    #[inline]
    pub(crate) fn note_thread(&self) {
        self.sign.set(true);
        if self.every.get() == RARELY {
            self.every.set(OFTEN);
            self.next.set(0);
        }
    }
}
