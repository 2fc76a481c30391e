//! A read of known length that waits for data from one of our own transports sleeps until all of it has arrived.
//!
//! asyncio's reader wakes the read for each piece, pauses the transport at twice the limit, and the read resumes it and
//! waits again. With another transport a program could observe that, so there it happens here as well. For a long read
//! the transport also lets the kernel wait (`stream/low_water.rs`), except on a free-threaded build.

use super::classes::plain_reader;
use super::reader::Reader;
use crate::capi::native::in_section;
use crate::capi::section::FREE_THREADED;
use crate::capi::{Borrowed, Native, This};
use crate::transport::stream::low_water::LONG;
use crate::transport::stream::state::Stream;

/// The transport of a reader, if it is exactly our own stream transport. Borrow it only while no other code can run.
#[inline(always)]
fn native_transport(reader: &Reader) -> Option<Borrowed<'_>> {
    // SAFETY: null, or an object that the slot holds a reference to.
    let transport = unsafe { Borrowed::from_nullable(reader.transport.as_ptr()) };
    transport.filter(|transport| Stream::class().is_exact_class_of(transport))
}

/// Calls `body`, which runs no Python code, with the transport of a reader, if it is exactly our own stream transport.
///
/// Never on a free-threaded build: the transport has another lock than the reader, so the reader could change meanwhile.
#[inline(always)]
pub(super) fn with_native_transport<R>(
    reader: &Reader,
    body: impl FnOnce(This<'_, Stream>) -> R,
) -> Option<R> {
    if FREE_THREADED {
        return None;
    }
    // SAFETY: the class was checked, and no other code runs before `body` has returned.
    native_transport(reader).map(|transport| unsafe { in_section(transport.as_ptr(), body) })
}

/// A read begins to wait. It needs `wanted` bytes in all; 0 if any number is enough.
#[inline(always)]
pub(super) fn begin(reader: &Reader, wanted: usize) {
    reader.wanted.set(wanted);
    if wanted == 0 {
        return;
    }
    if native_transport(reader).is_some() {
        reader.least.set(wanted);
        if wanted >= LONG && is_fed_natively(reader) {
            await_bytes(reader, reader.missing());
        }
    }
}

/// Does the transport store the data in the reader by itself? A `data_received` that it has to call, such as that of a
/// subclass of asyncio's protocol, gets each piece when it arrives.
#[cold]
fn is_fed_natively(reader: &Reader) -> bool {
    let Some(transport) = reader.transport.get() else { return false };
    let fed = transport.with_native(|stream: This<'_, Stream>| stream.sink.native_reader());
    fed.flatten().as_ref().and_then(plain_reader).is_some_and(|fed| std::ptr::eq(fed, reader))
}

/// Other code than the transport has added data, so less is missing.
#[inline(always)]
pub(super) fn follow(reader: &Reader) {
    if reader.least.get() >= LONG {
        with_native_transport(reader, |stream| stream.follow(|| reader.missing()));
    }
}

/// No read waits any more, or its wait is no longer for a number of bytes.
#[inline(always)]
pub(super) fn end(reader: &Reader) {
    reader.wanted.set(0);
    if reader.least.take() >= LONG {
        await_bytes(reader, 0);
    }
}

/// Tells the transport how many bytes the read still needs.
#[cold]
fn await_bytes(reader: &Reader, missing: usize) {
    with_native_transport(reader, |stream| stream.await_bytes(missing));
}
