//! From the socket to the protocol.
//!
//! One `recv` per event: a short read means that the socket is drained, unless the event also carried a
//! close or an error, which must be read too, or urgent data, at whose mark a read ends. After [`READS`] full
//! reads the transport queues itself for the next turn, so that one fast peer starves nobody.
//!
//! Small messages are received into the loop's buffer and copied into a `bytes` of their exact size. After
//! a large one the next receive goes straight into a `bytes` of [`DIRECT`] bytes that is then cut, or into the
//! buffer of asyncio's StreamReader: below glibc's mmap threshold, where a fresh 256 KiB object would cost three
//! system calls.

use std::io;
use std::os::fd::RawFd;

use super::transport::{Stream, call_in_context};
use crate::capi::buffer::{RawBytes, bytes_from};
use crate::capi::call::getattr;
use crate::capi::error::raise_io;
use crate::capi::imports::imports;
use crate::capi::{Fatal, Raised, Ref};
use crate::event_loop::core::{Core, Flush, RECEIVE};
use crate::reactor::{Readiness, receive_local};
use crate::transport::base::protocol_sink::{Delivery, Receiver};
use crate::transport::reader_feed;
use crate::transport::tls::read as tls;
use pyo3::ffi;

/// Full reads per event.
const READS: usize = 4;
/// From this size on a message counts as large.
pub(crate) const LARGE: usize = 32 * 1024;
/// The size of a direct receive.
pub(crate) const DIRECT: usize = 120 * 1024;

/// What one receive came to.
enum Received {
    /// Data was delivered; `full` if there was no room for more.
    Data { full: bool },
    /// Nothing is there.
    Empty,
    /// The peer has closed its side.
    Eof,
    /// The connection is over or somebody else's now.
    Stop,
}

/// The descriptor is readable, or something is wrong with it, which reading will tell.
#[inline(always)]
pub(crate) fn on_readable(
    object: &Ref,
    stream: &Stream,
    core: &Core,
    readiness: Readiness,
) -> Result<(), Fatal> {
    let goes_on = readiness.intersects(Readiness::BEHIND_SHORT_READ);
    for _ in 0..READS {
        if !stream.is_reading() || stream.read_done.get() || stream.conn_lost.get() > 0 || stream.fd.get() < 0
        {
            return Ok(());
        }
        let received = match stream.receiver.delivery() {
            Delivery::Data => receive_data(object, stream, core)?,
            Delivery::Buffer => receive_into(object, stream)?,
            Delivery::Tls => receive_tls(object, stream, core)?,
            Delivery::Reader => receive_for_reader(object, stream, core)?,
        };
        match received {
            Received::Data { full: true } if stream.receiver.delivery() == Delivery::Reader => {}
            Received::Data { full } if full || goes_on => {
                // What the data made the protocol schedule comes before more of it and before the end of the stream,
                // as in asyncio: a task may have to change the protocol. A reader only grows.
                if !core.ready.is_empty() {
                    stream.go_on_next_turn(core, readiness);
                    return Ok(());
                }
            }
            Received::Data { .. } | Received::Empty | Received::Stop => return Ok(()),
            Received::Eof => return on_eof(object, stream),
        }
    }
    if stream.is_reading() {
        core.requeue(stream.token.get(), readiness | Readiness::READABLE);
    }
    Ok(())
}

/// -1 from `recv`: nothing there, or a broken connection.
#[cold]
fn failed(object: &Ref, stream: &Stream, error: io::Error) -> Result<Received, Fatal> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(Received::Empty),
        // An interrupted read is tried again in the next turn.
        io::ErrorKind::Interrupted => {
            stream.core().requeue(stream.token.get(), Readiness::READABLE);
            Ok(Received::Empty)
        }
        _ => {
            let raised = raise_io(&error);
            stream.fatal_error(object, raised, "Fatal read error on socket transport")?;
            Ok(Received::Stop)
        }
    }
}

#[inline(always)]
fn receive_data(object: &Ref, stream: &Stream, core: &Core) -> Result<Received, Fatal> {
    let (data, full) = match take_bytes(stream, core) {
        Ok(Some(taken)) => taken,
        Ok(None) => return Ok(Received::Eof),
        Err(Some(error)) => return failed(object, stream, error),
        // No memory for the message: it is still in the socket, but the connection cannot go on.
        Err(None) => {
            stream.fatal_error(object, Raised, "Fatal read error on socket transport")?;
            return Ok(Received::Stop);
        }
    };
    let received = deliver_data(object, stream, full, |receiver| receiver.data_received(&data));
    core.spare_bytes.keep(data);
    received
}

/// Hands data to the protocol by `call`; what fails there ends the connection.
#[inline(always)]
fn deliver_data(
    object: &Ref,
    stream: &Stream,
    full: bool,
    call: impl FnOnce(&Receiver) -> Result<(), Raised>,
) -> Result<Received, Fatal> {
    match deliver(object, stream, call) {
        Ok(flushed) => flushed.map(|()| Received::Data { full }),
        Err(raised) => {
            stream.fatal_error(object, raised, "Fatal error: protocol.data_received() call failed.")?;
            Ok(Received::Stop)
        }
    }
}

/// Hands data to the protocol and sends what it answered. The outer result is the protocol's, the inner one
/// that of the sending.
#[inline(always)]
fn deliver(
    object: &Ref,
    stream: &Stream,
    call: impl FnOnce(&Receiver) -> Result<(), Raised>,
) -> Result<Result<(), Fatal>, Raised> {
    let core = stream.core();
    let delivery = Delivering { object, stream, outer: core.begin_delivery(object, super::send::flush) };
    stream.in_context(|| call(&stream.receiver))?;
    delivery.end();
    if stream.buffer().is_empty() || stream.blocked.get() {
        return Ok(Ok(()));
    }
    Ok(super::send::flush(object, core))
}

/// A call of the protocol with data. While it lasts, small writes to the transport wait for its end. Dropping it is the end
/// of a call that an exception or a panic has left: what was written before that is sent at the end of the turn.
struct Delivering<'a> {
    object: &'a Ref,
    stream: &'a Stream,
    outer: Option<(*mut ffi::PyObject, Flush)>,
}

impl Delivering<'_> {
    #[inline(always)]
    fn end(self) {
        self.stream.core().end_delivery(self.outer);
        std::mem::forget(self);
    }
}

impl Drop for Delivering<'_> {
    #[cold]
    fn drop(&mut self) {
        self.stream.core().end_delivery(self.outer);
        super::send::flush_later(self.object, self.stream);
    }
}

/// One `recv` of at most `size` bytes to `place`: what it returned, and whether more may be there. That is so if there was
/// no room left, or if the read of a Unix socket ended at a descriptor, which nobody gets here.
///
/// # Safety
/// `place` is valid for writing so many bytes.
#[inline(always)]
unsafe fn receive(stream: &Stream, place: *mut u8, size: usize) -> (isize, bool) {
    if stream.may_be_local() {
        // SAFETY: as the caller promises.
        return receive_from_local(stream.descriptor(), unsafe {
            std::slice::from_raw_parts_mut(place, size)
        });
    }
    // SAFETY: as the caller promises.
    let count = unsafe { libc::recv(stream.descriptor(), place.cast(), size, libc::MSG_DONTWAIT) };
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
fn take_bytes(stream: &Stream, core: &Core) -> Result<Option<(Ref, bool)>, Option<io::Error>> {
    if stream.large.get() {
        let mut bytes = RawBytes::with_capacity(DIRECT).map_err(|Raised| None)?;
        // SAFETY: the object has room for that many bytes and is seen by nobody else.
        let (count, full) = unsafe { receive(stream, bytes.as_mut_ptr(), DIRECT) };
        if count < 0 {
            return Err(Some(io::Error::last_os_error()));
        }
        let count = count as usize;
        if count == 0 {
            return Ok(None);
        }
        stream.large.set(count >= LARGE);
        // SAFETY: `recv` has written `count` bytes.
        let data = unsafe { bytes.finish(count) }.map_err(|Raised| None)?;
        return Ok(Some((data, full)));
    }
    let buffer = core.receive_buffer();
    // SAFETY: the buffer is valid for its length; it is copied before anything else can run.
    let (count, full) = unsafe { receive(stream, buffer.as_mut_ptr(), RECEIVE) };
    if count < 0 {
        return Err(Some(io::Error::last_os_error()));
    }
    let count = count as usize;
    if count == 0 {
        return Ok(None);
    }
    stream.large.set(count >= LARGE);
    let data = core.spare_bytes.bytes_from(&buffer[..count]).map_err(|Raised| None)?;
    Ok(Some((data, full)))
}

/// A receive for a TLS connection: decrypted out of a vector of the loop's, and what comes of it delivered. Not the
/// loop's receive buffer, because OpenSSL may call back into Python while it reads.
#[inline(always)]
fn receive_tls(object: &Ref, stream: &Stream, core: &Core) -> Result<Received, Fatal> {
    let Some(connection) = stream.receiver.protocol.get() else { return Ok(Received::Stop) };
    let mut data = core.take_scratch();
    // SAFETY: a scratch vector has room for more than that.
    let (count, full) = unsafe { receive(stream, data.as_mut_ptr(), RECEIVE) };
    if count <= 0 {
        let error = io::Error::last_os_error();
        core.return_scratch(data);
        return if count == 0 { Ok(Received::Eof) } else { failed(object, stream, error) };
    }
    // SAFETY: `recv` has written `count` bytes.
    unsafe { data.set_len(count as usize) };
    let taken = tls::take(&connection, core, &data);
    core.return_scratch(data);
    match taken.and_then(|taken| stream.in_context(|| tls::taken(&connection, taken))) {
        Ok(()) => Ok(Received::Data { full }),
        Err(raised) => {
            stream.fatal_error(object, raised, "Fatal error: protocol.buffer_updated() call failed.")?;
            Ok(Received::Stop)
        }
    }
}

/// Receives for a StreamReader, which gets the data without a call of Python's: a large message straight into the
/// object that a read waits for, or into asyncio's buffer, anything else by way of the loop's buffer. The wake-up of
/// whoever reads is queued, so nothing is written before this returns.
#[inline(always)]
fn receive_for_reader(object: &Ref, stream: &Stream, core: &Core) -> Result<Received, Fatal> {
    let reader = stream.receiver.reader();
    let room = match reader.as_ref().and_then(|reader| reader_feed::room(reader, stream.large.get())) {
        Some(Ok(room)) => Some(room),
        Some(Err(raised)) => return deliver_data(object, stream, false, |_| Err(raised)),
        None => None,
    };
    let buffer = core.receive_buffer();
    let (place, size) = match &room {
        Some(room) => (room.place, room.size),
        None => (buffer.as_mut_ptr(), RECEIVE),
    };
    // SAFETY: either the reader's own room, which stays as it is until the reader is told, or the loop's
    // buffer, which is copied before anything else can run.
    let (received, full) = unsafe { receive(stream, place, size) };
    let error = (received < 0).then(io::Error::last_os_error);
    let count = received.max(0) as usize;
    let direct = room.is_some();
    let told = match (&reader, room) {
        (Some(reader), Some(room)) => room.filled(reader, count),
        _ => Ok(()),
    };
    if let Some(error) = error {
        return failed(object, stream, error);
    }
    if count == 0 {
        return Ok(Received::Eof);
    }
    stream.large.set(count >= LARGE);
    let fed = match &reader {
        Some(_) if direct => told.map(|()| true),
        Some(reader) => reader_feed::feed(reader, &buffer[..count]),
        None => Ok(false),
    };
    match fed {
        Ok(true) => Ok(Received::Data { full }),
        Ok(false) => deliver_data(object, stream, full, |receiver| {
            receiver.data_received(&bytes_from(&buffer[..count])?)
        }),
        Err(raised) => deliver_data(object, stream, full, |_| Err(raised)),
    }
}

/// `protocol.get_buffer(-1)`, a receive straight into it, `protocol.buffer_updated(n)`.
fn receive_into(object: &Ref, stream: &Stream) -> Result<Received, Fatal> {
    let buffer = match stream.in_context(|| stream.receiver.get_buffer(-1)) {
        Ok(buffer) => buffer,
        Err(raised) => {
            stream.fatal_error(object, raised, "Fatal error: protocol.get_buffer() call failed.")?;
            return Ok(Received::Stop);
        }
    };
    // `get_buffer` was Python. One that closes or pauses gets this data all the same, as in asyncio.
    if stream.fd.get() < 0 {
        return Ok(Received::Stop);
    }
    let room = buffer.len();
    // SAFETY: the view keeps the memory alive and writable.
    let (count, full) = unsafe { receive(stream, buffer.as_ptr().cast(), room) };
    drop(buffer);
    if count < 0 {
        return failed(object, stream, io::Error::last_os_error());
    }
    if count == 0 {
        return Ok(Received::Eof);
    }
    let updated = deliver(object, stream, |receiver| receiver.buffer_updated(count));
    match updated {
        Ok(flushed) => flushed.map(|()| Received::Data { full }),
        Err(raised) => {
            stream.fatal_error(object, raised, "Fatal error: protocol.buffer_updated() call failed.")?;
            Ok(Received::Stop)
        }
    }
}

/// The peer has closed its side: the protocol decides whether ours stays open.
fn on_eof(object: &Ref, stream: &Stream) -> Result<(), Fatal> {
    let Some(protocol) = stream.receiver.protocol.get() else { return Ok(()) };
    let core = stream.core();
    if core.is_debug() {
        core.support("received_eof", &[object.as_ptr()])?;
    }
    let answer = getattr(protocol.as_ptr(), imports().eof_received.as_ptr())
        .and_then(|eof_received| call_in_context(stream, &eof_received))
        // SAFETY: a live object; -1 with an error set means failure.
        .and_then(|answer| match unsafe { ffi::PyObject_IsTrue(answer.as_ptr()) } {
            -1 => Err(Raised),
            truth => Ok(truth == 1),
        });
    match answer {
        Ok(true) => {
            stream.read_done.set(true);
            stream.settle();
            Ok(())
        }
        Ok(false) => super::send::close(object, stream),
        Err(raised) => {
            stream.fatal_error(object, raised, "Fatal error: protocol.eof_received() call failed.")
        }
    }
}
