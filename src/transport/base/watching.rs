//! The registration of a transport's descriptor in the poller.
//!
//! **Edge-triggered**: a stream is registered once, for both directions. Closing the descriptor removes it from the
//! poller.
//!
//! **Level-triggered**: the other kinds update their registration whenever their interest changes, for two reasons. A
//! short read does not mean that a datagram socket, a terminal or a packet pipe is drained, so one read per event is
//! right only if the poller reports the rest again. And the kernel reports an edge for writing after each datagram that
//! it has sent, so a registration for both directions would wake the loop once per `sendto`. The registration is
//! removed before the descriptor is closed: if a child process has a duplicate of it, closing would not remove it from
//! the poller.

use std::io;

use super::transport::{TransportBase, TransportKind};
use crate::capi::This;
use crate::kernel::core::Core;
use crate::kernel::core::ready::NativeStep;
use crate::reactor::Interest;

/// Updates the registration to the transport's interest. If another thread waits in the poller, queues `again`, which
/// does it on the loop's thread.
pub(super) fn watch<T: TransportKind>(
    this: This<'_, T>,
    core: &Core,
    again: NativeStep<Core>,
) -> io::Result<()> {
    if T::EDGE_TRIGGERED {
        return Ok(());
    }
    let base = this.base();
    let (fd, token) = (base.fd.get(), base.token.get());
    let wanted = if base.life.is_starting() || base.life.is_closed() { None } else { this.interest() };
    let now = base.watched.get();
    if wanted == now || core.is_parents() {
        return Ok(());
    }
    if core.is_polling() {
        core.call_native(this.object().to_owned(), again);
        return Ok(());
    }
    let Some(poller) = core.poller_to_change() else { return Ok(()) };
    if core.fds.token(fd) != token || this.descriptor() != fd {
        // The program has closed the descriptor, which has removed it from the poller. Another file may have the
        // number.
        base.watched.set(wanted);
        return Ok(());
    }
    match (now, wanted) {
        // A `sock_connect` or a `sock_accept` may have waited for it.
        (None, Some(interest)) => poller.ensure_level(fd, token, interest)?,
        (Some(_), Some(interest)) => poller.reregister_level(fd, token, interest)?,
        // It fails only if the descriptor is not in the poller any more.
        (_, None) => drop(poller.deregister(fd)),
    }
    base.watched.set(wanted);
    Ok(())
}

/// Registers an edge-triggered transport, once.
pub(super) fn register_edge<T: TransportKind>(this: This<'_, T>, core: &Core) -> io::Result<()> {
    let base = this.base();
    if base.is_watched() {
        return Ok(());
    }
    let Some(poller) = core.poller_to_change() else { return Ok(()) };
    let (fd, token) = (this.descriptor(), base.token.get());
    poller.ensure_edge(fd, token, Interest::BOTH)?;
    base.watched.set(Some(Interest::BOTH));
    Ok(())
}

/// The state of a direction in the `repr`: "polling" or "idle" as in asyncio, or "open" once the loop is closed.
pub(crate) fn polling(base: &TransportBase, direction: Interest) -> &'static str {
    if base.core().is_closed() {
        return "open";
    }
    let watched = base.watched.get().is_some_and(|watched| match direction {
        Interest::WRITE => watched.is_write(),
        _ => watched.is_read(),
    });
    if watched { "polling" } else { "idle" }
}
