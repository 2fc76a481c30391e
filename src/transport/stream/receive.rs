//! From the socket to the protocol: one receive, and the call of the protocol with what it gave.
//!
//! Small messages are received into the loop's buffer and copied into a `bytes` of their exact size. After a large one the
//! next receive goes straight into a `bytes` of [`DIRECT`] bytes that is then cut, or into the buffer of asyncio's
//! StreamReader.

use std::io;
use std::os::fd::RawFd;

use super::send;
use super::state::Stream;
use crate::capi::buffer::{RawBytes, bytes_from};
use crate::capi::error::raise_io;
use crate::capi::{Raised, Ref, This};
use crate::event_loop::core::writes::Delivery as Outer;
use crate::event_loop::core::{Core, RECEIVE};
use crate::reactor::{Readiness, receive_local};
use crate::transport::base::protocol_sink::{Delivery, ProtocolSink};
use crate::transport::base::sizes::{DIRECT, LARGE};
use crate::transport::reader_feed;

const READ_FAILED: &str = "Fatal read error on socket transport";
const DATA_RECEIVED_FAILED: &str = "Fatal error: protocol.data_received() call failed.";
const GET_BUFFER_FAILED: &str = "Fatal error: protocol.get_buffer() call failed.";
const BUFFER_UPDATED_FAILED: &str = "Fatal error: protocol.buffer_updated() call failed.";

/// What one receive came to.
#[derive(Debug)]
pub(super) enum Received {
    /// The protocol was called with data, and may have answered. `full` if more may be there. The data may serve once more
    /// when the answer is sent.
    Data { full: bool, data: Option<Ref> },
    /// The data was stored; no Python code has run.
    Stored { full: bool },
    /// Nothing is there.
    Empty,
    /// The peer has closed its side.
    Eof,
    /// The connection cannot go on: an error is set, and this is what asyncio says of it.
    Failed(Raised, &'static str),
    /// The connection was closed or detached meanwhile.
    Gone,
}

/// Receives once, in the way that the protocol wants its data.
#[inline(always)]
pub(super) fn receive(this: This<'_, Stream>, core: &Core) -> Received {
    match this.sink.delivery() {
        Delivery::Data => receive_data(this, core),
        Delivery::Buffer => receive_into(this, core),
        Delivery::Native => receive_natively(this, core),
        Delivery::Reader => receive_for_reader(this, core),
    }
}

/// The meaning of -1 from `recv`. The error must be looked at before anything else can change errno.
#[cold]
fn failed(this: This<'_, Stream>, core: &Core, error: io::Error) -> Received {
    match error.kind() {
        io::ErrorKind::WouldBlock => Received::Empty,
        // An interrupted read is tried again in the next turn.
        io::ErrorKind::Interrupted => {
            core.requeue(this.base.token.get(), Readiness::READABLE);
            Received::Empty
        }
        _ => Received::Failed(raise_io(&error), READ_FAILED),
    }
}

#[inline(always)]
fn receive_data(this: This<'_, Stream>, core: &Core) -> Received {
    let (data, full) = match take_bytes(this, core) {
        Ok(Some(taken)) => taken,
        Ok(None) => return Received::Eof,
        Err(Some(error)) => return failed(this, core, error),
        // No memory for the message: it is still in the socket, but the connection cannot go on.
        Err(None) => return Received::Failed(Raised, READ_FAILED),
    };
    match deliver(this, core, |sink| sink.data_received(&data)) {
        Ok(()) => Received::Data { full, data: Some(data) },
        Err(raised) => Received::Failed(raised, DATA_RECEIVED_FAILED),
    }
}

/// Calls the protocol with data.
#[inline(always)]
fn deliver(
    this: This<'_, Stream>,
    core: &Core,
    call: impl FnOnce(&ProtocolSink) -> Result<(), Raised>,
) -> Result<(), Raised> {
    let outer = core.begin_delivery(&this.object(), send::flush);
    let delivering = Delivering { this, core, outer };
    this.base.in_context(|| call(&this.sink))?;
    delivering.end();
    Ok(())
}

/// A call of the protocol with data. While it lasts, small writes to the transport wait for its end. Dropping it is the end
/// of a call that an exception or a panic has left: what was written before that is sent at the end of the turn.
struct Delivering<'a> {
    this: This<'a, Stream>,
    core: &'a Core,
    outer: Outer<Core>,
}

impl Delivering<'_> {
    #[inline(always)]
    fn end(self) {
        self.core.end_delivery(self.outer);
        std::mem::forget(self);
    }
}

impl Drop for Delivering<'_> {
    #[cold]
    fn drop(&mut self) {
        self.core.end_delivery(self.outer);
        send::flush_later(self.this);
    }
}

/// One `recv` of at most `size` bytes to `place`: what it returned, and whether more may be there. That is so if there was
/// no room left, or if the read of a Unix socket ended at a descriptor, which nobody gets here.
///
/// # Safety
/// `place` is valid for writing so many bytes.
#[inline(always)]
unsafe fn receive_to(this: This<'_, Stream>, place: *mut u8, size: usize) -> (isize, bool) {
    if this.reading.may_be_local() {
        // SAFETY: as the caller promises.
        let place = unsafe { std::slice::from_raw_parts_mut(place, size) };
        return receive_from_local(this.descriptor(), place);
    }
    // SAFETY: as the caller promises.
    let count = unsafe { libc::recv(this.descriptor(), place.cast(), size, libc::MSG_DONTWAIT) };
    (count, count == size as isize)
}

fn receive_from_local(fd: RawFd, place: &mut [u8]) -> (isize, bool) {
    let size = place.len();
    match receive_local(fd, &mut [io::IoSliceMut::new(place)]) {
        Ok((count, cut)) => (count as isize, cut || count == size),
        // It is in errno, as after a `recv`.
        Err(_) => (-1, false),
    }
}

/// Receives once. `Ok(None)` is the end of the stream, `Err(None)` a Python error that is set.
#[inline(always)]
fn take_bytes(this: This<'_, Stream>, core: &Core) -> Result<Option<(Ref, bool)>, Option<io::Error>> {
    if this.reading.large.get() {
        let mut bytes = RawBytes::with_capacity(DIRECT).map_err(|Raised| None)?;
        // SAFETY: the object has room for that many bytes and is seen by nobody else.
        let (count, full) = unsafe { receive_to(this, bytes.as_mut_ptr(), DIRECT) };
        let Some(count) = received(this, count)? else { return Ok(None) };
        // SAFETY: `recv` has written `count` bytes.
        let data = unsafe { bytes.finish(count) }.map_err(|Raised| None)?;
        return Ok(Some((data, full)));
    }
    let buffer = core.receive_buffer();
    // SAFETY: the buffer is valid for its length; it is copied before anything else can run.
    let (count, full) = unsafe { receive_to(this, buffer.as_mut_ptr(), RECEIVE) };
    let Some(count) = received(this, count)? else { return Ok(None) };
    let data = core.bytes_cache.bytes_from(&buffer[..count]).map_err(|Raised| None)?;
    Ok(Some((data, full)))
}

/// How many bytes came, and whether the next receive is for a large message. Nothing at the end of the stream.
#[inline(always)]
fn received(this: This<'_, Stream>, count: isize) -> Result<Option<usize>, Option<io::Error>> {
    if count < 0 {
        return Err(Some(io::Error::last_os_error()));
    }
    let count = count as usize;
    if count == 0 {
        return Ok(None);
    }
    this.reading.large.set(count >= LARGE);
    Ok(Some(count))
}

/// A receive for a protocol that takes data natively: into a vector of the loop's. Not into the loop's receive buffer,
/// because OpenSSL may call back into Python while it reads.
#[inline(always)]
fn receive_natively(this: This<'_, Stream>, core: &Core) -> Received {
    let Some(protocol) = this.sink.protocol.get() else { return Received::Gone };
    let mut data = core.take_scratch();
    // SAFETY: a scratch vector has room for more than that.
    let (count, full) = unsafe { receive_to(this, data.as_mut_ptr(), RECEIVE) };
    if count <= 0 {
        let error = io::Error::last_os_error();
        core.return_scratch(data);
        return if count == 0 { Received::Eof } else { failed(this, core, error) };
    }
    // SAFETY: `recv` has written `count` bytes.
    unsafe { data.set_len(count as usize) };
    let context = this.base.context.get();
    match this.sink.receive_natively(&protocol, core, data, context.as_ref()) {
        Ok(()) => Received::Stored { full },
        Err(raised) => Received::Failed(raised, BUFFER_UPDATED_FAILED),
    }
}

/// Receives for a StreamReader, which gets the data without a call into Python: a large message straight into the object
/// that a read waits for, or into asyncio's buffer, anything else by way of the loop's buffer. The wake-up of the reading
/// task is queued, so nothing is written before this returns.
#[inline(always)]
fn receive_for_reader(this: This<'_, Stream>, core: &Core) -> Received {
    let reader = this.sink.reader();
    let room = match reader.as_ref().and_then(|reader| reader_feed::room(reader, this.reading.large.get())) {
        Some(Ok(room)) => Some(room),
        Some(Err(raised)) => return Received::Failed(raised, DATA_RECEIVED_FAILED),
        None => None,
    };
    let buffer = core.receive_buffer();
    let (place, size) = match &room {
        Some(room) => (room.place, room.size),
        None => (buffer.as_mut_ptr(), RECEIVE),
    };
    // SAFETY: either the reader's own room, which stays as it is until `filled` is called, or the loop's buffer, which is
    // copied before anything else can run.
    let (count, full) = unsafe { receive_to(this, place, size) };
    let error = (count < 0).then(io::Error::last_os_error);
    let is_direct = room.is_some();
    let filled = match (&reader, room) {
        (Some(reader), Some(room)) => room.filled(reader, count.max(0) as usize),
        _ => Ok(()),
    };
    if let Some(error) = error {
        return failed(this, core, error);
    }
    let count = count as usize;
    if count == 0 {
        return Received::Eof;
    }
    this.reading.large.set(count >= LARGE);
    let fed = match &reader {
        Some(_) if is_direct => filled.map(|()| true),
        Some(reader) => reader_feed::feed(reader, &buffer[..count]),
        None => Ok(false),
    };
    let delivered = match fed {
        Ok(true) => return Received::Stored { full },
        Ok(false) => deliver(this, core, |sink| sink.data_received(&bytes_from(&buffer[..count])?)),
        Err(raised) => Err(raised),
    };
    match delivered {
        Ok(()) => Received::Data { full, data: None },
        Err(raised) => Received::Failed(raised, DATA_RECEIVED_FAILED),
    }
}

/// `protocol.get_buffer(-1)`, a receive straight into it, `protocol.buffer_updated(n)`.
fn receive_into(this: This<'_, Stream>, core: &Core) -> Received {
    let buffer = match this.base.in_context(|| this.sink.get_buffer(-1)) {
        Ok(buffer) => buffer,
        Err(raised) => return Received::Failed(raised, GET_BUFFER_FAILED),
    };
    // `get_buffer` was Python. One that closes or pauses gets this data all the same, as in asyncio.
    if this.base.life.is_closed() {
        return Received::Gone;
    }
    // SAFETY: the view keeps the memory alive and writable.
    let (count, full) = unsafe { receive_to(this, buffer.as_ptr().cast(), buffer.len()) };
    drop(buffer);
    if count < 0 {
        return failed(this, core, io::Error::last_os_error());
    }
    if count == 0 {
        return Received::Eof;
    }
    match deliver(this, core, |sink| sink.buffer_updated(count)) {
        Ok(()) => Received::Data { full, data: None },
        Err(raised) => Received::Failed(raised, BUFFER_UPDATED_FAILED),
    }
}
