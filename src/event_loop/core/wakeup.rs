//! Whether a push into the loop needs a wake-up.
//!
//! Two things can wait: a thread that sleeps in the poll without the GIL, and a foreign main loop (a GUI's, say) in which this
//! loop is embedded. The foreign loop waits for the poller's descriptor between the turns of this one, so that
//! descriptor must become readable as soon as there is something to do.

use std::cell::Cell;

/// What waits for a push.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    /// A thread sleeps in the poll without the GIL, and the poller is its own meanwhile.
    pub(crate) polling: Cell<bool>,
    /// A foreign main loop waits for the poller's descriptor between the turns.
    pub(crate) embedded: Cell<bool>,
}

impl Wakeup {
    /// Does a push have to wake a thread, or the foreign main loop?
    #[inline(always)]
    pub(crate) fn is_needed(&self) -> bool {
        self.polling.get() | self.embedded.get()
    }
}
