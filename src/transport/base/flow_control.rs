//! Flow control for writes: `pause_writing` above the high-water mark, `resume_writing` at or below the low-water mark.

use super::closing::{finish, watch_or_lose};
use super::reporting::{notify_pause, notify_resume};
use super::transport::TransportKind;
use crate::capi::{Fatal, Raised, This};
use crate::kernel::core::Core;

/// Calls `pause_writing` if more bytes than the high-water mark are unsent.
pub(crate) fn maybe_pause<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    let base = this.base();
    if this.unsent() <= base.marks.high.get() || base.protocol_paused.replace(true) {
        return Ok(());
    }
    notify_pause(this)
}

/// Calls `resume_writing` if at most as many bytes as the low-water mark are unsent.
pub(crate) fn maybe_resume<T: TransportKind>(this: This<'_, T>) -> Result<(), Fatal> {
    let base = this.base();
    if !base.protocol_paused.get() || this.unsent() > base.marks.low.get() {
        return Ok(());
    }
    base.protocol_paused.set(false);
    notify_resume(this)
}

/// Called after the loop has sent data of a level-triggered transport. Resumes or pauses the protocol, and ends a
/// closing transport after its last byte.
pub(crate) fn after_send<T: TransportKind>(this: This<'_, T>, core: &Core) -> Result<(), Fatal> {
    maybe_resume(this)?;
    let life = &this.base().life;
    if !this.is_drained() {
        // Not everything was sent, or `resume_writing` has written more. So the protocol may have to pause.
        maybe_pause(this).or_else(|raised| core.unraisable(raised))?;
    } else if life.is_closing() && !life.is_lost() {
        return finish(this, core);
    }
    watch_or_lose(this, core)
}
