//! Records whether a push to the ready queue needs a wake-up.
//!
//! There are two cases. A thread may wait in the poller without the GIL. Or this loop is embedded in a foreign main
//! loop, such as a GUI's. Between two turns of this loop, the foreign loop waits for the poller's descriptor. So the
//! descriptor must become readable as soon as there is something to do.

use std::cell::Cell;

/// Who waits for the loop.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    /// A thread waits in the poller without the GIL. No other thread may use the poller.
    pub(crate) polling: Cell<bool>,
    /// A foreign main loop waits for the poller's descriptor between two turns.
    pub(crate) embedded: Cell<bool>,
}
