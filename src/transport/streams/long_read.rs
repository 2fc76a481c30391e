//! A read of known length that waits for data from one of our own transports sleeps until all of it has arrived.
//!
//! asyncio's reader wakes the read for each piece, pauses the transport at twice the limit, and the read resumes it and
//! waits again. With another transport a program could observe that, so there it happens here as well. For a long read
//! the transport also lets the kernel wait (`stream/low_water.rs`).

use super::reader::Reader;
use crate::capi::{Borrowed, Native, This};
use crate::transport::stream::low_water::LONG;
use crate::transport::stream::state::Stream;

/// The transport of a reader, if it is exactly our own stream transport. Borrow it only while no Python code can run.
#[inline(always)]
pub(super) fn native_transport(reader: &Reader) -> Option<This<'_, Stream>> {
    // SAFETY: null, or an object that the slot holds a reference to.
    let transport = unsafe { Borrowed::from_nullable(reader.transport.as_ptr()) };
    transport.filter(|transport| Stream::class().is_exact_class_of(transport)).map(|transport| {
        // SAFETY: the class was checked.
        unsafe { This::from_ptr(transport.as_ptr()) }
    })
}

/// A read begins to wait. It needs `wanted` bytes in all; 0 if any number is enough.
#[inline(always)]
pub(super) fn begin(reader: &Reader, wanted: usize) {
    reader.wanted.set(wanted);
    if wanted == 0 {
        return;
    }
    if let Some(stream) = native_transport(reader) {
        reader.least.set(wanted);
        if wanted >= LONG {
            stream.await_bytes(reader.missing());
        }
    }
}

/// No read waits any more, or its wait is no longer for a number of bytes.
#[inline(always)]
pub(super) fn end(reader: &Reader) {
    reader.wanted.set(0);
    if reader.least.take() >= LONG {
        lower(reader);
    }
}

#[cold]
fn lower(reader: &Reader) {
    if let Some(stream) = native_transport(reader) {
        stream.await_bytes(0);
    }
}
