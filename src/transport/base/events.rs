//! When a level-triggered transport acts on readiness.
//!
//! As in asyncio, what was ready before the poll runs before what the poll found. So an event that comes while callbacks
//! wait is put behind them: a datagram may have been there before the callback that is going to wait for it. An event
//! that comes while the transport acts, from a loop that runs inside of its protocol's callback, waits for the end of
//! that.

use super::transport::TransportKind;
use crate::capi::{Fatal, Ref, This};
use crate::event_loop::core::Core;
use crate::event_loop::source::Source;
use crate::reactor::Readiness;

/// A transport that acts on events one after the other.
pub(crate) trait ActsInTurn: TransportKind {
    fn act(this: This<'_, Self>, core: &Core, readiness: Readiness) -> Result<(), Fatal>;
}

impl<T: ActsInTurn> Source for T {
    fn has_descriptor(object: &Ref) -> bool {
        object.downcast::<T>().is_some_and(|this| this.descriptor() == this.base().fd.get())
    }

    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        let Some(this) = object.downcast::<T>() else { return Ok(()) };
        let base = this.base();
        if (core.ready.is_empty() || core.is_dispatching()) && !base.acting.get() {
            return act(this, core, readiness);
        }
        if base.kept.replace(base.kept.get() | readiness).is_empty() {
            core.call_native(object.clone_ref(), act_later::<T>);
        }
        Ok(())
    }
}

fn act_later<T: ActsInTurn>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<T>() else { return Ok(()) };
    let base = this.base();
    if base.acting.get() {
        // This step is queued once more when the outer call returns.
        return Ok(());
    }
    let readiness = base.kept.replace(Readiness::EMPTY);
    // A callback in front of this step may have closed the transport.
    if base.life.is_closed() || readiness.is_empty() {
        return Ok(());
    }
    act(this, core, readiness)
}

#[inline(always)]
fn act<T: ActsInTurn>(this: This<'_, T>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    let outcome = acting(this, || T::act(this, core, readiness));
    if !this.base().kept.get().is_empty() {
        core.call_native(this.object().to_owned(), act_later::<T>);
    }
    outcome
}

/// Runs `body` with the mark that says so. The mark is taken away after a panic too.
#[inline(always)]
pub(crate) fn acting<T: TransportKind, R>(this: This<'_, T>, body: impl FnOnce() -> R) -> R {
    struct Acting<'a>(&'a std::cell::Cell<bool>);

    impl Drop for Acting<'_> {
        #[inline(always)]
        fn drop(&mut self) {
            self.0.set(false);
        }
    }

    let mark = &this.fields().base().acting;
    mark.set(true);
    let _acting = Acting(mark);
    body()
}
