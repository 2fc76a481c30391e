//! Flow control of what a protocol writes: `pause_writing` above the high-water mark, `resume_writing` at the low one.

use super::reporting::{notify_pause, notify_resume};
use super::transport::TransportKind;
use crate::capi::{Fatal, Raised, This};

/// Asks the protocol to pause if more than the high-water mark is unsent.
pub(crate) fn maybe_pause<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    let base = this.base();
    if this.unsent() <= base.marks.high.get() || base.protocol_paused.replace(true) {
        return Ok(());
    }
    notify_pause(this)
}

/// Asks the protocol to go on if no more than the low-water mark is unsent.
pub(crate) fn maybe_resume<T: TransportKind>(this: This<'_, T>) -> Result<(), Fatal> {
    let base = this.base();
    if !base.protocol_paused.get() || this.unsent() > base.marks.low.get() {
        return Ok(());
    }
    base.protocol_paused.set(false);
    notify_resume(this)
}
