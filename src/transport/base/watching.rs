//! What an endpoint is watched for.
//!
//! **Level-triggered**, unlike streams, and only for what is wanted. One read per event is
//! then always right: a datagram socket, a terminal or a packet pipe does not tell by a short read that it
//! is drained. And every datagram that the kernel has sent off counts as an edge for writing, so that
//! a registration for both would wake the loop once per `sendto`. What is watched is also taken back
//! before the descriptor is closed: a duplicate of it in a child would keep it in the poller.

use super::endpoint::{Endpoint, Variant, end_with, fields};
use crate::capi::error::raise_io;
use crate::capi::{Fatal, Raised, Ref};
use crate::event_loop::core::Core;
use crate::reactor::Interest;

/// What is said when the poller does not take a descriptor: to the exception handler, as that is no fault of the peer's.
pub(crate) const UNWATCHED: &str = "Fatal error on transport";

/// Brings the poller in line with what the endpoint wants to hear of.
pub(crate) fn watch<T: Variant>(object: &Ref, variant: &T, core: &Core) -> std::io::Result<()> {
    let endpoint = variant.endpoint();
    let fd = endpoint.fd.get();
    let wanted = if endpoint.started.get() && fd >= 0 { variant.interest() } else { None };
    let now = endpoint.watched.get();
    if wanted == now || core.is_parents() {
        return Ok(());
    }
    if core.is_polling() {
        // Another thread called while the loop is parked in the poller: the loop's thread does it.
        core.call_native(object.clone_ref(), watch_later::<T>);
        return Ok(());
    }
    let (Some(poller), token) = (core.poller(), endpoint.token.get()) else { return Ok(()) };
    if fd >= 0 && (core.fds.token(fd) != token || variant.descriptor() != fd) {
        // The poller has forgotten it with the descriptor, and the number may be somebody else's.
        endpoint.watched.set(wanted);
        return Ok(());
    }
    match (now, wanted) {
        (None, Some(interest)) => match poller.register_level(fd, token, interest) {
            // Known from a `sock_connect` that waited on it.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                poller.reregister_level(fd, token, interest)?;
            }
            other => other?,
        },
        (Some(_), Some(interest)) => poller.reregister_level(fd, token, interest)?,
        // What is not there any more needs no taking away.
        (_, None) => {
            let _ = poller.deregister(fd);
        }
    }
    endpoint.watched.set(wanted);
    Ok(())
}

fn watch_later<T: Variant>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with an endpoint of this variant.
    let variant = unsafe { fields::<T>(object.as_ptr()) };
    watch_or_fail(object, variant, core)
}

/// As [`watch`]; an endpoint that cannot be watched is lost.
pub(crate) fn watch_or_fail<T: Variant>(object: &Ref, variant: &T, core: &Core) -> Result<(), Fatal> {
    match watch(object, variant, core) {
        Ok(()) => Ok(()),
        Err(error) => end_with(object, variant, raise_io(&error), UNWATCHED, "protocol_failed"),
    }
}

/// As [`watch`], for a method of the transport, which raises what the poller says, as asyncio's does. The transport stays
/// open.
pub(crate) fn watch_or_raise<T: Variant>(object: &Ref, variant: &T, core: &Core) -> Result<(), Raised> {
    watch(object, variant, core).map_err(|error| raise_io(&error))
}

/// "polling" or "idle", as asyncio says it, or "open" once the loop is closed and does neither.
pub(crate) fn polling(endpoint: &Endpoint, direction: Interest) -> &'static str {
    if endpoint.core().is_closed() {
        return "open";
    }
    let watched = endpoint.watched.get().is_some_and(|watched| match direction {
        Interest::WRITE => watched.is_write(),
        _ => watched.is_read(),
    });
    if watched { "polling" } else { "idle" }
}
