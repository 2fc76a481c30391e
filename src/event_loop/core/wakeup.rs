//! Whether a push into the loop has to wake somebody.
//!
//! Two can wait: a thread that sleeps in the poll without the GIL, and a foreign main loop (a GUI's, say) in which this
//! loop is embedded. The foreign loop waits for the poller's descriptor between the turns of this one, so that
//! descriptor must become readable as soon as there is something to do.

use std::cell::Cell;

/// Who waits for the loop.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    polling: Cell<bool>,
    embedded: Cell<bool>,
}

impl Wakeup {
    /// Does anybody wait that a push has to wake?
    #[inline(always)]
    pub(crate) fn is_needed(&self) -> bool {
        self.polling.get() | self.embedded.get()
    }

    /// A thread sleeps in the poll without the GIL, and the poller is its own meanwhile.
    #[inline(always)]
    pub(crate) fn is_polling(&self) -> bool {
        self.polling.get()
    }

    pub(crate) fn set_polling(&self, polling: bool) {
        self.polling.set(polling);
    }

    /// A foreign main loop waits for the poller's descriptor between the turns.
    #[inline(always)]
    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded.get()
    }

    pub(crate) fn embed(&self) {
        self.embedded.set(true);
    }
}
