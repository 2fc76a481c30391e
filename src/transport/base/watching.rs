//! What the poller reports about a transport's descriptor.
//!
//! **Edge-triggered**: a stream is registered once, for both directions, and never again. Closing the descriptor takes it
//! out of the poller.
//!
//! **Level-triggered**: the others are registered for what they want at the time. One read per event is then always right:
//! a short read does not mean that a datagram socket, a terminal or a packet pipe is drained. And every datagram
//! that the kernel has sent counts as an edge for writing, so a registration for both directions would wake the loop once
//! per `sendto`. A registration is taken back before the descriptor is closed, because a duplicate of it in a child would
//! keep it in the poller.

use std::io;

use super::transport::{TransportBase, TransportKind};
use crate::capi::This;
use crate::event_loop::core::Core;
use crate::event_loop::core::ready::NativeStep;
use crate::reactor::Interest;

/// Brings the poller in line with what the transport wants to hear of. While another thread sleeps in the poller, the
/// step `again` does it, on the loop's thread.
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
    let Some(poller) = core.poller() else { return Ok(()) };
    if core.fds.token(fd) != token || this.descriptor() != fd {
        // The poller has forgotten it with the descriptor, and the number may belong to another file.
        base.watched.set(wanted);
        return Ok(());
    }
    match (now, wanted) {
        (None, Some(interest)) => {
            or_again(poller.register_level(fd, token, interest), || {
                poller.reregister_level(fd, token, interest)
            })?;
        }
        (Some(_), Some(interest)) => poller.reregister_level(fd, token, interest)?,
        // Fails only if the poller has forgotten it.
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
    let Some(poller) = core.poller() else { return Ok(()) };
    let (fd, token) = (this.descriptor(), base.token.get());
    or_again(poller.register_edge(fd, token, Interest::BOTH), || {
        poller.reregister_edge(fd, token, Interest::BOTH)
    })?;
    base.watched.set(Some(Interest::BOTH));
    Ok(())
}

/// Registers a descriptor that is known to the poller once more: a `sock_connect` or a `sock_accept` has waited on it.
pub(crate) fn or_again(registered: io::Result<()>, again: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match registered {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => again(),
        other => other,
    }
}

/// What `repr` says of a direction: "polling" or "idle", as asyncio says it, or "open" once the loop is closed.
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
