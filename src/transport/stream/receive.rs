//! One receive from the socket, and the call of the protocol with its data.
//!
//! Small messages are received into the loop's buffer, and copied to a `bytes` of their exact size. After a large one,
//! the next receive goes directly into a `bytes` of [`DIRECT`] bytes, which is then shrunk, or into the buffer of a
//! StreamReader. After a full one of these, the `bytes` has [`DIRECT_LONG`] bytes.

use std::io;
use std::os::fd::RawFd;

use super::state::{Expected, Stream};
use crate::capi::buffer::{RawBytes, bytes_from};
use crate::capi::error::{raise, raise_os_error};
use crate::capi::{Raised, Ref, This};
use crate::kernel::core::{Core, RECEIVE};
use crate::kernel::observe::recording;
use crate::reactor::receive_local;
use crate::transport::base::heap;
use crate::transport::base::protocol_sink::Delivery;
use crate::transport::base::sizes::{DIRECT, DIRECT_LONG};
use crate::transport::reader_feed;

const READ_FAILED: &str = "Fatal read error on socket transport";
const DATA_RECEIVED_FAILED: &str = "Fatal error: protocol.data_received() call failed.";
const GET_BUFFER_FAILED: &str = "Fatal error: protocol.get_buffer() call failed.";
const BUFFER_UPDATED_FAILED: &str = "Fatal error: protocol.buffer_updated() call failed.";

/// The outcome of a receive.
#[derive(Debug)]
pub(super) enum Received {
    /// The protocol was called with data, and may have written an answer. `full` if there may be more data. After the
    /// answer is sent, the caller gives the `bytes` object back for reuse.
    Data { full: bool, data: Option<Ref> },
    /// The data was fed to a StreamReader, or passed to a TLS connection. `full` if there may be more data.
    Stored { full: bool },
    /// There is no data.
    Empty,
    /// The peer has closed its side.
    Eof,
    /// The connection has to be closed. An error is set, and this is asyncio's message for it.
    Failed(Raised, &'static str),
    /// The protocol has closed or detached the connection in the meantime.
    Gone,
}

/// Receives once, and delivers the data to the protocol.
#[inline(always)]
pub(super) fn receive(this: This<'_, Stream>, core: &Core) -> Received {
    if core.probe.recorder.is_on() { receive_recorded(this, core) } else { receive_once(this, core, false) }
}

/// The same for the flight recorder. A second copy of the code: a check after the system call would cost ten
/// instructions, because it makes the compiler move values out of registers.
#[cold]
fn receive_recorded(this: This<'_, Stream>, core: &Core) -> Received {
    receive_once(this, core, true)
}

#[inline(always)]
fn receive_once(this: This<'_, Stream>, core: &Core, recorded: bool) -> Received {
    let received = match this.sink.delivery() {
        Delivery::Data => receive_data(this, core, recorded),
        Delivery::Buffer => receive_into(this, core, recorded),
        Delivery::Native => receive_natively(this, core, recorded),
        Delivery::Reader => receive_for_reader(this, core, recorded),
    };
    received.unwrap_or_else(|without_data| without_data)
}

/// The outcome for an error of `recv`. `None` for EINTR: the receive has to be tried again at once. The edge that the
/// poller has reported is not reported again, and it may have been the one of the end of the stream.
#[cold]
fn failed(error: io::Error) -> Option<Received> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Some(Received::Empty),
        io::ErrorKind::Interrupted => None,
        _ => Some(Received::Failed(raise_os_error(&error), READ_FAILED)),
    }
}

/// Calls `recv` once. Returns the number of bytes, and whether there may be more: if the room was filled, or if the
/// read of a Unix socket was cut at passed file descriptors, which are discarded.
///
/// # Safety
/// `place` is valid for writes of `size` bytes.
#[inline(always)]
unsafe fn receive_to(
    this: This<'_, Stream>,
    core: &Core,
    recorded: bool,
    place: *mut u8,
    size: usize,
) -> Result<(usize, bool), Received> {
    let (count, full) = loop {
        let error = if this.reading.may_be_local() {
            // SAFETY: the caller's promise.
            let place = unsafe { std::slice::from_raw_parts_mut(place, size) };
            match receive_local(this.descriptor(), &mut [io::IoSliceMut::new(place)]) {
                Ok((count, cut)) => break (count, cut || count == size),
                Err(error) => error,
            }
        } else {
            // SAFETY: the caller's promise.
            let count = unsafe { libc::recv(this.descriptor(), place.cast(), size, libc::MSG_DONTWAIT) };
            if count >= 0 {
                break (count as usize, count as usize == size);
            }
            io::Error::last_os_error()
        };
        if let Some(without_data) = failed(error) {
            return Err(without_data);
        }
    };
    if count == 0 {
        return Err(Received::Eof);
    }
    this.reading.expected.set(this.reading.expected.get().after(count));
    this.writing.habit.note_received();
    core.spins.note_bytes(count);
    if recorded {
        record(this, core, count);
    }
    Ok((count, full))
}

/// Records that data was received, and that the protocol's method is about to be called with it.
#[cold]
fn record(this: This<'_, Stream>, core: &Core, count: usize) {
    core.probe.recorder.received(this.descriptor(), count as isize);
    if let Some(method) = this.sink.method() {
        recording::call(core, &method);
    }
}

/// Receives for `data_received`. After a large message, receives directly into a `bytes`.
#[inline(always)]
fn receive_data(this: This<'_, Stream>, core: &Core, recorded: bool) -> Result<Received, Received> {
    // The connection is closed if memory has run out, even if the data is still in the socket.
    let no_memory = |raised| Received::Failed(raised, READ_FAILED);
    let most = this.receive_size(usize::MAX).map_err(no_memory)?;
    let expected = this.reading.expected.get();
    let (data, full) = if expected >= Expected::Large {
        let size = if expected == Expected::Long { DIRECT_LONG } else { DIRECT };
        let size = size.min(most);
        heap::keep(size);
        let mut bytes = RawBytes::with_capacity(size).map_err(no_memory)?;
        // SAFETY: the object has room for `size` bytes, and no other code has a reference to it.
        let (count, full) = unsafe { receive_to(this, core, recorded, bytes.as_mut_ptr(), size) }?;
        // SAFETY: `count` bytes have been received.
        (unsafe { bytes.finish(count) }.map_err(no_memory)?, full)
    } else {
        let mut buffer = core.scratch.receive_buffer();
        // SAFETY: the buffer is valid for its length.
        let (count, full) =
            unsafe { receive_to(this, core, recorded, buffer.as_mut_ptr(), RECEIVE.min(most)) }?;
        (core.bytes_cache.bytes_from(&buffer[..count]).map_err(no_memory)?, full)
    };
    this.base
        .in_context(|| this.sink.data_received(&data))
        .map_err(|raised| Received::Failed(raised, DATA_RECEIVED_FAILED))?;
    Ok(Received::Data { full, data: Some(data) })
}

/// Receives for a [`NativeProtocol`](crate::transport::base::protocol_sink::NativeProtocol), into a scratch vector of
/// the loop. The loop's receive buffer cannot be used, because OpenSSL may call Python code while it reads.
#[inline(always)]
fn receive_natively(this: This<'_, Stream>, core: &Core, recorded: bool) -> Result<Received, Received> {
    let Some(protocol) = this.sink.protocol.get() else { return Err(Received::Gone) };
    let mut data = core.scratch.take();
    // SAFETY: the capacity of a scratch vector is larger than `RECEIVE`.
    let (count, full) = match unsafe { receive_to(this, core, recorded, data.as_mut_ptr(), RECEIVE) } {
        Ok(received) => received,
        Err(without_data) => {
            core.scratch.give_back(data);
            return Err(without_data);
        }
    };
    // SAFETY: `count` bytes have been received.
    unsafe { data.set_len(count) };
    let context = this.base.context.get();
    let received = this.sink.receive_natively(&protocol, core, data, context.as_ref());
    received
        .map(|()| Received::Stored { full })
        .map_err(|raised| Received::Failed(raised, BUFFER_UPDATED_FAILED))
}

/// Receives for a StreamReader, without a call into Python. A large message goes directly into the object for which a
/// read waits, or into asyncio's buffer; a small one through the loop's buffer. The wake-up of the reading task is
/// queued, so the task writes nothing before this returns.
#[inline(always)]
fn receive_for_reader(this: This<'_, Stream>, core: &Core, recorded: bool) -> Result<Received, Received> {
    let not_taken = |raised| Received::Failed(raised, DATA_RECEIVED_FAILED);
    let most = this.receive_size(usize::MAX).map_err(|raised| Received::Failed(raised, READ_FAILED))?;
    let reader = this.sink.reader();
    if let Some(reader) = &reader
        && let Some(room) = reader_feed::room(reader, this.reading.expected.get() >= Expected::Large)
    {
        let room = room.map_err(not_taken)?;
        // SAFETY: the room in the reader stays valid until `filled` is called.
        let received = unsafe { receive_to(this, core, recorded, room.place, room.size.min(most)) };
        let filled = room.filled(reader, received.as_ref().map_or(0, |(count, _)| *count));
        let (_, full) = received?;
        this.follow(|| reader_feed::missing(reader));
        return filled.map(|()| Received::Stored { full }).map_err(not_taken);
    }
    let mut buffer = core.scratch.receive_buffer();
    // SAFETY: the buffer is valid for its length.
    let (count, full) = unsafe { receive_to(this, core, recorded, buffer.as_mut_ptr(), RECEIVE.min(most)) }?;
    let data = &buffer[..count];
    if let Some(reader) = &reader
        && reader_feed::feed(reader, core, data).map_err(not_taken)?
    {
        this.follow(|| reader_feed::missing(reader));
        return Ok(Received::Stored { full });
    }
    this.base.in_context(|| this.sink.data_received(&bytes_from(data)?)).map_err(not_taken)?;
    Ok(Received::Data { full, data: None })
}

/// Calls `protocol.get_buffer(-1)`, receives into that buffer, and calls `protocol.buffer_updated(n)`. asyncio asks for
/// a buffer only if there is something to receive: the protocol may have no room left, which is an error.
fn receive_into(this: This<'_, Stream>, core: &Core, recorded: bool) -> Result<Received, Received> {
    if this.reading.is_unsure.replace(false) && has_nothing(this.descriptor()) {
        return Err(Received::Empty);
    }
    let buffer = this
        .base
        .in_context(|| this.sink.get_buffer(-1, "recv_into() argument 1"))
        .map_err(|raised| Received::Failed(raised, GET_BUFFER_FAILED))?
        .map_err(|exception| Received::Failed(raise(exception), READ_FAILED))?;
    // `get_buffer` may have closed or paused the transport. As in asyncio, it still gets this data, unless the
    // descriptor is closed.
    if this.base.life.is_closed() {
        return Err(Received::Gone);
    }
    // SAFETY: the view keeps the memory alive and writable.
    let received = unsafe { receive_to(this, core, recorded, buffer.as_ptr().cast(), buffer.len()) };
    drop(buffer);
    let (count, full) = received?;
    this.base
        .in_context(|| this.sink.buffer_updated(count as isize))
        .map_err(|raised| Received::Failed(raised, BUFFER_UPDATED_FAILED))?;
    Ok(Received::Data { full, data: None })
}

/// Has a socket neither data nor an end or an error to report?
#[cold]
fn has_nothing(fd: RawFd) -> bool {
    let mut byte = 0u8;
    // SAFETY: `byte` is valid for a write of one byte.
    let count = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    count < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}
