//! Checks of the writing methods: is the transport an unpatched one of ours, and would `drain` wait?

use super::classes::{CLASSES, Classes};
use crate::capi::imports::imports;
use crate::capi::{Raised, Ref, This};
use crate::transport::stream::send::send_gathered;
use crate::transport::stream::state::Stream;

/// Indices of attributes in the list that `wakeloop._net.streams` passes.
const PAUSED: usize = 1;
const CONNECTION_LOST: usize = 2;

/// Calls `body` with a transport, in a section of its loop, if it is an unpatched stream transport of ours.
#[inline(always)]
pub(super) fn with_plain_stream<R>(
    classes: &Classes,
    transport: &Ref,
    body: impl FnOnce(This<'_, Stream>) -> R,
) -> Option<R> {
    let call = |stream: This<'_, Stream>| {
        if classes.transport.is_unpatched() && stream.has_no_own_attributes() {
            Some(body(stream))
        } else {
            None
        }
    };
    transport.with_native(call).flatten()
}

/// Would asyncio's `drain` return without waiting and without an error?
#[inline(always)]
pub(super) fn is_drained(object: &Ref) -> Result<bool, Raised> {
    let Some(classes) = CLASSES.get() else { return Ok(false) };
    let Some(writer) = classes.plain_writer(object) else { return Ok(false) };
    if let Some(reader) = writer.reader.get()
        && reader.hold(|| classes.plain_reader(&reader).is_none_or(|reader| !reader.exception.is_empty()))
    {
        return Ok(false);
    }
    let Some(transport) = writer.transport.get() else { return Ok(false) };
    let is_closing_now = |stream: This<'_, Stream>| -> Result<bool, Raised> {
        send_gathered(stream)?;
        Ok(stream.base.life.is_closing())
    };
    let closing = match with_plain_stream(classes, &transport, is_closing_now) {
        Some(closing) => closing?,
        None => is_closing(&transport)?,
    };
    let Some(protocol) = writer.protocol.get() else { return Ok(false) };
    if closing || !classes.protocol.is_unpatched_on(&protocol)? {
        return Ok(false);
    }
    Ok(classes.protocol.is_false(&protocol, PAUSED)?
        && classes.protocol.is_false(&protocol, CONNECTION_LOST)?)
}

/// Calls `is_closing()` of any transport. A result other than `False` counts as true.
fn is_closing(transport: &Ref) -> Result<bool, Raised> {
    Ok(!transport.call_method(&imports().is_closing, &[])?.is_false())
}
