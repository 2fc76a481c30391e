//! Checks of the writing methods: is the transport an unpatched one of ours, and would `drain` wait?

use super::classes::{CLASSES, Classes};
use super::writer::Writer;
use crate::capi::imports::imports;
use crate::capi::{Raised, Ref};
use crate::transport::stream::state::Stream;

/// Indices of attributes in the list that `wakeloop._streams` passes.
const PAUSED: usize = 1;
const CONNECTION_LOST: usize = 2;

/// The transport of a writer, if it is an unpatched stream transport of ours.
#[inline(always)]
pub(super) fn plain_transport(classes: &Classes, writer: &Writer) -> Option<Ref> {
    if !classes.transport.is_unpatched() {
        return None;
    }
    writer.transport.get().filter(|transport| {
        transport.downcast::<Stream>().is_some_and(|stream| stream.base.has_no_own_attributes())
    })
}

/// Would asyncio's `drain` return without waiting and without an error?
#[inline(always)]
pub(super) fn is_drained(object: &Ref) -> Result<bool, Raised> {
    let Some(classes) = CLASSES.get() else { return Ok(false) };
    let Some(writer) = classes.plain_writer(object) else { return Ok(false) };
    if let Some(reader) = writer.reader.get()
        && classes.plain_reader(&reader).is_none_or(|reader| !reader.exception.is_empty())
    {
        return Ok(false);
    }
    let transport = plain_transport(classes, writer);
    let closing = match transport.as_ref().and_then(|transport| transport.downcast::<Stream>()) {
        Some(stream) => stream.base.life.is_closing(),
        None => is_transport_closing(writer)?,
    };
    let Some(protocol) = writer.protocol.get() else { return Ok(false) };
    if closing || !classes.protocol.is_unpatched_on(&protocol)? {
        return Ok(false);
    }
    Ok(classes.protocol.is_false(&protocol, PAUSED)?
        && classes.protocol.is_false(&protocol, CONNECTION_LOST)?)
}

/// Calls `transport.is_closing()` of any transport. A result other than `False` counts as true.
fn is_transport_closing(writer: &Writer) -> Result<bool, Raised> {
    let Some(transport) = writer.transport.get() else { return Ok(true) };
    let closing = transport.call_method(&imports().is_closing, &[])?;
    Ok(!closing.is_false())
}
