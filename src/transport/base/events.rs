//! Decides when a level-triggered transport handles an event.
//!
//! As in asyncio, callbacks that were ready before the poll run before the events of the poll: one of them may be about
//! to wait for a datagram that has already arrived. So if callbacks are ready, the event is queued behind them. If the
//! protocol runs the loop inside of a callback, an event for the same transport waits until that callback returns.

use super::transport::{self, TransportKind};
use crate::capi::{Fatal, Ref, This};
use crate::kernel::core::Core;
use crate::kernel::source::{Source, Status};
use crate::reactor::Readiness;

/// A transport that handles one event at a time.
pub(crate) trait EventHandler: TransportKind {
    fn handle(this: This<'_, Self>, core: &Core, readiness: Readiness) -> Result<(), Fatal>;
}

impl<T: EventHandler> Source for T {
    fn status(object: &Ref) -> Status {
        object.downcast::<T>().map_or_else(Status::default, transport::status)
    }

    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        let Some(this) = object.downcast::<T>() else { return Ok(()) };
        let base = this.base();
        if (core.ready.is_empty() || core.is_dispatching()) && !base.handling.get() {
            return handle_now(this, core, readiness);
        }
        if base.pending_readiness.replace(base.pending_readiness.get() | readiness).is_empty() {
            core.call_native(object.clone_ref(), handle_later::<T>);
        }
        Ok(())
    }
}

fn handle_later<T: EventHandler>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<T>() else { return Ok(()) };
    let base = this.base();
    if base.handling.get() {
        // The outer call queues this function again when it returns.
        return Ok(());
    }
    let readiness = base.pending_readiness.replace(Readiness::EMPTY);
    // A callback that ran before this may have closed the transport.
    if base.life.is_closed() || readiness.is_empty() {
        return Ok(());
    }
    handle_now(this, core, readiness)
}

#[inline(always)]
fn handle_now<T: EventHandler>(this: This<'_, T>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    let outcome = while_handling(this, || T::handle(this, core, readiness));
    if !this.base().pending_readiness.get().is_empty() {
        core.call_native(this.object().to_owned(), handle_later::<T>);
    }
    outcome
}

/// Runs `body` while [`TransportBase::handling`](super::transport::TransportBase::handling) is set. It is reset even
/// after a panic.
#[inline(always)]
pub(crate) fn while_handling<T: TransportKind, R>(this: This<'_, T>, body: impl FnOnce() -> R) -> R {
    struct Handling<'a>(&'a std::cell::Cell<bool>);

    impl Drop for Handling<'_> {
        #[inline(always)]
        fn drop(&mut self) {
            self.0.set(false);
        }
    }

    let flag = &this.fields().base().handling;
    flag.set(true);
    let _handling = Handling(flag);
    body()
}
