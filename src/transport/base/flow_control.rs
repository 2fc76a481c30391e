//! Flow control of what a protocol writes: `pause_writing` above the high-water mark, `resume_writing` at the low one.

use super::closing::{finish, watch_or_lose};
use super::reporting::{notify_pause, notify_resume};
use super::transport::TransportKind;
use crate::capi::{Fatal, Raised, This};
use crate::event_loop::core::Core;

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

/// After a send from the loop by a level-triggered transport: the protocol goes on or pauses, and a transport that was to
/// close with its last byte does so.
pub(crate) fn after_send<T: TransportKind>(this: This<'_, T>, core: &Core) -> Result<(), Fatal> {
    maybe_resume(this)?;
    let life = &this.base().life;
    if !this.is_drained() {
        // Not all went out, or resume_writing wrote more: the protocol may have to pause.
        maybe_pause(this).or_else(|raised| core.unraisable(raised))?;
    } else if life.is_closing() && !life.is_lost() {
        return finish(this, core);
    }
    watch_or_lose(this, core)
}
