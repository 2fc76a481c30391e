//! The end of a transport: `close`, `abort`, fatal errors and `connection_lost`.

use super::phase::Transition;
use super::reporting::{Caller, notify, report_close, report_exception, report_unwatched};
use super::transport::TransportKind;
use super::watching;
use crate::capi::error::{Outcome, raise_os_error, take_unless_fatal};
use crate::capi::imports::imports;
use crate::capi::{Fatal, Raised, Ref, This};
use crate::kernel::core::Core;

/// The message when the poller cannot register a descriptor. The error goes to the exception handler, because the peer
/// has not caused it.
const UNWATCHED: &str = "Fatal error on transport";

/// Queues `connection_lost(exception)`, once. On a closed loop it raises as asyncio's `call_soon` does. The transport
/// is then lost without that call, and its descriptor stays open until the transport is deallocated.
pub(crate) fn lose<T: TransportKind>(this: This<'_, T>, exception: Option<Ref>) -> Result<(), Fatal> {
    let base = this.base();
    if base.life.lose() == Transition::Before {
        return Ok(());
    }
    base.core().check_usable().map_err(|Raised| Fatal)?;
    base.lost_exception.set(exception);
    base.core().call_native(this.object().to_owned(), connection_lost::<T>);
    Ok(())
}

/// asyncio's `_force_close`: drops the data that the descriptor does not accept now.
pub(crate) fn force_close<T: TransportKind>(this: This<'_, T>, exception: Option<Ref>) -> Result<(), Fatal> {
    let base = this.base();
    if base.life.is_lost() || base.fd.get() < 0 {
        return Ok(());
    }
    T::send_last(this);
    this.drop_unsent();
    let _ = base.life.close();
    stop_watching(this, base.core());
    lose(this, exception)
}

/// `close()`: stops reading, and sends pending data before `connection_lost(None)`.
pub(crate) fn close<T: TransportKind>(this: This<'_, T>) -> Result<(), Fatal> {
    let base = this.base();
    if base.life.close() == Transition::Before {
        return Ok(());
    }
    let mut outcome = Outcome::default();
    outcome.note(T::send_gathered(this).map_err(|Raised| Fatal));
    if this.is_drained() {
        outcome.note(lose(this, None));
    }
    outcome.note(watch_or_lose(this, base.core()));
    outcome.finish()
}

/// `abort()`. Writes of this turn are sent first, because asyncio would have sent them already.
pub(crate) fn abort<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    let mut outcome = Outcome::default();
    outcome.note(T::send_gathered(this).map_err(|Raised| Fatal));
    outcome.note(force_close(this, None));
    outcome.finish().map_err(Raised::from)
}

/// Called when a closing transport has sent everything. Calls `connection_lost(None)` at once, as asyncio does after
/// the last byte was sent.
pub(crate) fn finish<T: TransportKind>(this: This<'_, T>, core: &Core) -> Result<(), Fatal> {
    match this.base().life.lose() {
        Transition::Entered => connection_lost::<T>(&this.object(), core),
        Transition::Before => Ok(()),
    }
}

/// asyncio's `_fatal_error`: reports the error that is set, and closes the connection by force.
#[cold]
pub(crate) fn fatal_error<T: TransportKind>(
    this: This<'_, T>,
    raised: Raised,
    message: &str,
) -> Result<(), Fatal> {
    end_with(this, raised, message, T::REPORT_FATAL)
}

/// Passes the error that is set to a function of `wakeloop._support`, and closes the connection by force.
#[cold]
fn end_with<T: TransportKind>(
    this: This<'_, T>,
    raised: Raised,
    message: &str,
    function: &str,
) -> Result<(), Fatal> {
    let Raised = raised;
    let exception = take_unless_fatal()?;
    // A fatal error of the report is returned after the connection was closed. The last send may cause another error.
    let mut outcome = Outcome::default();
    outcome.note(report_exception(this, &exception, message, function));
    outcome.note(force_close(this, Some(exception)));
    outcome.finish()
}

/// Calls `connection_lost`, closes the descriptor, and drops the protocol.
pub(crate) fn connection_lost<T: TransportKind>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<T>() else { return Ok(()) };
    let base = this.base();
    let exception = base.lost_exception.take().unwrap_or_else(Ref::none);
    // A fatal error is returned after everything is cleaned up.
    let mut outcome = Outcome::default();
    outcome.note(notify(this, core, Caller::Ending, &imports().connection_lost, &[exception.borrow()]));
    outcome.note(release(this).or_else(|raised| report_close(this, core, &exception, raised)));
    this.drop_unsent();
    this.forget_protocol();
    outcome.note(T::leave(this).or_else(|raised| core.unraisable(raised)));
    outcome.note(T::lost(this, core, &exception));
    base.context.clear();
    outcome.finish()
}

/// Removes the transport from the loop's table, and closes the descriptor.
#[inline(always)]
pub(super) fn release<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    let base = this.base();
    if base.fd.get() >= 0 {
        T::remember(this);
    }
    if base.life.end() == Transition::Before {
        return Ok(());
    }
    let core = base.core();
    stop_watching(this, core);
    leave_table(this);
    // As in asyncio, a peer on the same loop is notified in the next turn.
    core.note_io();
    let fd = base.fd.replace(-1);
    let owner = if T::OWNS_DESCRIPTOR { base.owner.get() } else { base.owner.take() };
    match owner {
        Some(owner) => owner.call_method(&imports().close, &[]).map(drop),
        None if T::OWNS_DESCRIPTOR && fd >= 0 => {
            // SAFETY: the transport owned this descriptor, and its field is -1 now.
            match unsafe { libc::close(fd) } {
                0 => Ok(()),
                _ => Err(raise_os_error(&std::io::Error::last_os_error())),
            }
        }
        None => Ok(()),
    }
}

/// Removes the transport from the loop's table. Does nothing if another owner of the descriptor is there.
#[inline(always)]
pub(super) fn leave_table<T: TransportKind>(this: This<'_, T>) {
    let base = this.base();
    let (core, fd) = (base.core(), base.fd.get());
    if fd >= 0 && core.fds.token(fd) == base.token.get() {
        drop(core.fds.remove(fd));
    }
}

// -- watching, and its errors ------------------------------------------------------------------------------------

/// Updates the registration in the poller. If that fails, the connection is lost.
pub(crate) fn watch_or_lose<T: TransportKind>(this: This<'_, T>, core: &Core) -> Result<(), Fatal> {
    watching::watch(this, core, watch_again::<T>).or_else(|error| unwatched(this, &error))
}

/// Updates the registration in the poller. If that fails, raises the error, as asyncio's methods do, and the transport
/// stays open.
pub(crate) fn watch_or_raise<T: TransportKind>(this: This<'_, T>, core: &Core) -> Result<(), Raised> {
    watching::watch(this, core, watch_again::<T>).map_err(|error| raise_os_error(&error))
}

/// Updates the registration of a transport that is closing. Errors do not matter.
fn stop_watching<T: TransportKind>(this: This<'_, T>, core: &Core) {
    drop(watching::watch(this, core, watch_again::<T>));
}

/// Begins to watch, after `connection_made` was called.
pub(super) fn watch_first<T: TransportKind>(this: This<'_, T>, core: &Core) -> Result<(), Fatal> {
    if this.base().life.is_lost() {
        return Ok(());
    }
    if T::EDGE_TRIGGERED {
        return watching::register_edge(this, core).or_else(|error| unwatched(this, &error));
    }
    watch_or_lose(this, core)
}

fn watch_again<T: TransportKind>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    object.downcast::<T>().map_or(Ok(()), |this| watch_or_lose(this, core))
}

#[cold]
fn unwatched<T: TransportKind>(this: This<'_, T>, error: &std::io::Error) -> Result<(), Fatal> {
    if error.raw_os_error() == Some(libc::EPERM) {
        // A file of a kind that cannot be watched, such as /dev/null. As in asyncio, the transport stays open.
        return report_unwatched(this, raise_os_error(error));
    }
    end_with(this, raise_os_error(error), UNWATCHED, "protocol_failed")
}
