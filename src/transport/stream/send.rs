//! From the protocol to the socket.
//!
//! A small immutable write is kept by reference and leaves at the end of the turn, or, if it is made while the
//! protocol receives, when it has received: together with whatever else is written to the same connection by
//! then, so that header and body cost one system call, and chunks of 64 KiB go out two by two, which costs a tenth
//! less. Above [`AT_ONCE`] bytes, above the high-water mark, or outside a running loop it is sent immediately, so that
//! buffer sizes and `pause_writing` are what asyncio's would be. Nothing written is held while the loop sleeps.

use std::io;

use pyo3::ffi;

use super::transport::{Stream, connection_lost, stream_of};
use crate::capi::buffer::{Buffer, bytes_from, bytes_slice, is_scattered};
use crate::capi::call::{call, call0, getattr, method};
use crate::capi::error::{raise, raise_io, raise_message, restore, take_exception, take_unless_fatal};
use crate::capi::fallible::{string, string_or_none};
use crate::capi::imports::{imports, support};
use crate::capi::{Fatal, Raised, Ref};
use crate::event_loop::completion::complete;
use crate::event_loop::core::Core;
use crate::transport::base::write_buffer::{Done, Sent, send_one};

/// With more pending bytes than this, a write is sent at once.
pub(crate) const AT_ONCE: usize = 64 * 1024;
/// After so many writes to a lost connection asyncio begins to warn.
const WARN_AFTER: u32 = 5;

/// `transport.write(data)`.
#[inline(always)]
pub(crate) fn write(object: &Ref, stream: &Stream, data: *mut ffi::PyObject) -> Result<(), Raised> {
    // SAFETY: a borrowed argument of the running call.
    if unsafe { ffi::PyBytes_Check(data) } == 0 {
        return write_other(object, stream, data);
    }
    check_write(stream)?;
    // SAFETY: just tested; the object outlives the slice.
    let size = unsafe { bytes_slice(data) }.len();
    if size == 0 {
        return Ok(());
    }
    if stream.conn_lost.get() > 0 {
        return write_to_lost(stream);
    }
    // SAFETY: a borrowed argument.
    stream.buffer().push(unsafe { Ref::from_borrowed(data) }, 0);
    pushed(object, stream)
}

/// After a push: decide whether the socket gets it now.
#[inline(always)]
fn pushed(object: &Ref, stream: &Stream) -> Result<(), Raised> {
    let pending = stream.buffer().len();
    if stream.blocked.get() {
        return maybe_pause(object, stream);
    }
    let small = pending <= AT_ONCE && pending <= stream.marks.high.get();
    let core = stream.core();
    if small && core.is_delivering(object) {
        return Ok(());
    }
    if small && core.is_running() {
        flush_later(object, stream);
        return Ok(());
    }
    send_now(object, stream)?;
    maybe_pause(object, stream)
}

/// Has what is pending sent at the end of the turn.
#[inline(always)]
pub(crate) fn flush_later(object: &Ref, stream: &Stream) {
    if !stream.queued.replace(true) {
        let core = stream.core();
        core.flush_later(object.clone_ref(), flush);
        core.wake_if_parked();
    }
}

/// Sends what is pending on behalf of a caller in Python: a fatal error is the caller's.
fn send_now(object: &Ref, stream: &Stream) -> Result<(), Raised> {
    match send_pending(stream) {
        Ok(_) => Ok(()),
        Err(raised) => stream
            .fatal_error(object, raised, "Fatal write error on socket transport")
            .map_err(|Fatal| Raised),
    }
}

/// Sends as much as the socket takes. An error of the socket is set as a Python error.
fn send_pending(stream: &Stream) -> Result<Sent, Raised> {
    stream.core().note_io();
    let mut done = Done::default();
    let outcome = stream.buffer().send(stream.descriptor(), &mut done);
    match outcome {
        Ok(Sent::All) => stream.blocked.set(false),
        Ok(Sent::Blocked) => stream.block(),
        Err(_) => {
            // The connection is lost: nothing more is sent.
            stream.blocked.set(true);
            let unsent = stream.buffer().take();
            drop(unsent);
        }
    }
    drop(done);
    outcome.map_err(|error| raise_io(&error))
}

fn check_write(stream: &Stream) -> Result<(), Raised> {
    check_writable(
        stream,
        "Cannot call write() after write_eof()",
        "unable to write; sendfile is in progress",
    )
}

fn check_writable(stream: &Stream, after_eof: &str, in_sendfile: &str) -> Result<(), Raised> {
    let message = if stream.eof.get() {
        after_eof
    } else if !stream.empty_waiter.is_empty() {
        in_sendfile
    } else {
        return Ok(());
    };
    // SAFETY: reading a static of the interpreter.
    raise_message(unsafe { ffi::PyExc_RuntimeError }, message);
    Err(Raised)
}

#[cold]
fn write_to_lost(stream: &Stream) -> Result<(), Raised> {
    if stream.conn_lost.get() >= WARN_AFTER {
        stream.core().support("write_after_lost", &[]).map_err(|Fatal| Raised)?;
    }
    stream.conn_lost.set(stream.conn_lost.get() + 1);
    Ok(())
}

/// `write` of a bytearray or memoryview. Its content may change as soon as we return, so it is sent or
/// copied now.
fn write_other(object: &Ref, stream: &Stream, data: *mut ffi::PyObject) -> Result<(), Raised> {
    // SAFETY: a live object.
    if unsafe { ffi::PyByteArray_Check(data) == 0 && ffi::PyMemoryView_Check(data) == 0 } {
        return Err(refuse(object, data));
    }
    check_write(stream)?;
    write_copy(object, stream, data)
}

/// The TypeError of asyncio's own `write`, whose words change from version to version.
#[cold]
fn refuse(object: &Ref, data: *mut ffi::PyObject) -> Raised {
    // SAFETY: the GIL is held, as in every method.
    let py = unsafe { pyo3::Python::assume_attached() };
    let refused = support(py, "refuse_stream_data").map_err(|error| restore(py, error));
    match refused.and_then(|refuse| call(&Ref::from(refuse), &[object.as_ptr(), data])) {
        Err(raised) => raised,
        // An asyncio that writes this: then what it is must be known here as well.
        Ok(_) => {
            // SAFETY: reading a static of the interpreter.
            raise_message(unsafe { ffi::PyExc_TypeError }, "data argument must be a bytes-like object");
            Raised
        }
    }
}

fn write_copy(object: &Ref, stream: &Stream, data: *mut ffi::PyObject) -> Result<(), Raised> {
    match Buffer::readable(data) {
        Ok(view) => write_slice(object, stream, view.as_slice()),
        Err(_) if is_scattered() => scattered(object, stream),
        Err(raised) => Err(raised),
    }
}

/// What cannot be sent as it lies in memory, with the error that says so. What was written before it has left at once on
/// asyncio, or has found the connection broken.
#[cold]
fn scattered(object: &Ref, stream: &Stream) -> Result<(), Raised> {
    let exception = take_exception();
    let waiting = buffer_size(object, stream)?;
    if stream.conn_lost.get() > 0 {
        return write_to_lost(stream);
    }
    if waiting > 0 && cfg!(not(Py_3_12)) {
        let text = "can't set bytearray slice from memoryview";
        // SAFETY: reading a static of the interpreter.
        raise_message(unsafe { ffi::PyExc_TypeError }, text);
        return Err(Raised);
    }
    raise(exception);
    stream.fatal_error(object, Raised, "Fatal write error on socket transport").map_err(|Fatal| Raised)
}

/// Sends what the socket takes of `data` now, in its turn behind what is pending, and keeps a copy of the rest.
pub(crate) fn write_slice(object: &Ref, stream: &Stream, data: &[u8]) -> Result<(), Raised> {
    if data.is_empty() {
        return Ok(());
    }
    if stream.conn_lost.get() > 0 {
        return write_to_lost(stream);
    }
    let mut sent = 0;
    if stream.buffer().is_empty() && !stream.blocked.get() {
        stream.core().note_io();
        sent = match send_one(stream.descriptor(), data) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                stream.block();
                0
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => 0,
            Err(error) => {
                return stream
                    .fatal_error(object, raise_io(&error), "Fatal write error on socket transport")
                    .map_err(|Fatal| Raised);
            }
        };
    }
    if sent == data.len() {
        return Ok(());
    }
    let rest = bytes_from(&data[sent..])?;
    stream.buffer().push(rest, 0);
    if sent > 0 {
        // A short send does not make the socket full; going on until it says so brings the edge.
        send_now(object, stream)?;
    }
    pushed(object, stream)
}

/// `transport.writelines(list)`.
pub(crate) fn writelines(object: &Ref, stream: &Stream, list: &Ref) -> Result<(), Raised> {
    if cfg!(Py_3_12) {
        check_writable(
            stream,
            "Cannot call writelines() after write_eof()",
            "unable to writelines; sendfile is in progress",
        )?;
        // As asyncio asks: None and 0 are no lists, but nothing is to be written either.
        // SAFETY: a live object; -1 with an error set means failure.
        match unsafe { ffi::PyObject_IsTrue(list.as_ptr()) } {
            -1 => return Err(Raised),
            0 => return Ok(()),
            _ => {}
        }
    }
    // All of it is looked at before any of it is sent, so that a wrong item sends nothing.
    // SAFETY: live objects; each owned result is wrapped at once.
    let items = unsafe { Ref::from_owned(ffi::PySequence_List(list.as_ptr())) }.ok_or(Raised)?;
    // SAFETY: a list.
    let count = unsafe { ffi::PyList_Size(items.as_ptr()) };
    let mut pieces = Vec::with_capacity(count.max(0) as usize);
    for index in 0..count {
        // Held, and looked for each time: the collector shows the list to whoever asks for all objects.
        // SAFETY: a list; a borrowed reference to an item, or null with an error.
        let item = unsafe { Ref::from_nullable(ffi::PyList_GetItem(items.as_ptr(), index)) }.ok_or(Raised)?;
        // SAFETY: a live object.
        let piece = unsafe {
            if ffi::PyBytes_Check(item.as_ptr()) != 0 {
                item
            } else {
                match Buffer::readable(item.as_ptr()) {
                    Ok(view) => bytes_from(view.as_slice())?,
                    Err(_) if cfg!(Py_3_12) && is_scattered() => return scattered(object, stream),
                    Err(raised) if cfg!(Py_3_12) => return Err(raised),
                    Err(raised) => return write_joined(object, stream, &items, raised),
                }
            }
        };
        pieces.push(piece);
    }
    if cfg!(not(Py_3_12)) {
        check_write(stream)?;
    }
    if stream.conn_lost.get() > 0 {
        return if pieces.is_empty() { Ok(()) } else { write_to_lost(stream) };
    }
    let mut any = false;
    for piece in pieces {
        // SAFETY: a bytes object.
        if !unsafe { bytes_slice(piece.as_ptr()) }.is_empty() {
            stream.buffer().push(piece, 0);
            any = true;
        }
    }
    if any { pushed(object, stream) } else { Ok(()) }
}

/// asyncio's `writelines` until 3.11 joins what it is given, which says what is wrong with it.
#[cold]
fn write_joined(object: &Ref, stream: &Stream, items: &Ref, raised: Raised) -> Result<(), Raised> {
    drop(raised.take());
    let name = string("join")?;
    let joined = method(&bytes_from(&[])?, name.as_ptr(), &[items.as_ptr()])?;
    write(object, stream, joined.as_ptr())
}

/// At the end of a turn, or when the socket has room again.
pub(crate) fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: flushes are queued for transports only.
    let stream = unsafe { stream_of(object.as_ptr()) };
    stream.queued.set(false);
    if stream.conn_lost.get() > 0 || stream.fd.get() < 0 || stream.buffer().is_empty() {
        return Ok(());
    }
    match send_pending(stream) {
        Ok(_) => drained(object, stream, core),
        Err(raised) => {
            let waiter = stream.empty_waiter.get();
            stream.fatal_error(object, raised, "Fatal write error on socket transport")?;
            match waiter {
                Some(waiter) => fail_empty_waiter(core, &waiter),
                None => Ok(()),
            }
        }
    }
}

/// After a send outside a `write` call: whoever waits for room or for the end is told.
fn drained(object: &Ref, stream: &Stream, core: &Core) -> Result<(), Fatal> {
    maybe_resume(object, stream)?;
    if !stream.buffer().is_empty() {
        // Not all went out, or resume_writing wrote more: the protocol may have to pause.
        return maybe_pause(object, stream).or_else(|raised| core.unraisable(raised));
    }
    if let Some(waiter) = stream.empty_waiter.get() {
        complete(core, &waiter)?;
    }
    if stream.closing.get() {
        if stream.conn_lost.get() == 0 {
            stream.conn_lost.set(1);
            return connection_lost(object, core);
        }
        return Ok(());
    }
    if stream.eof.get() {
        // A peer that is gone already is noticed by the next read.
        let _ = shut_down(stream);
    }
    if !stream.awaits_data() {
        stream.settle();
    }
    Ok(())
}

/// Half-closes the socket.
fn shut_down(stream: &Stream) -> io::Result<()> {
    stream.core().note_io();
    // SAFETY: the transport owns the descriptor.
    let done = unsafe { libc::shutdown(stream.descriptor(), libc::SHUT_WR) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `transport.close()`.
pub(crate) fn close(object: &Ref, stream: &Stream) -> Result<(), Fatal> {
    if stream.closing.replace(true) {
        return Ok(());
    }
    if stream.core().check_usable().is_err() {
        // asyncio's call_soon would refuse the step that ends the connection; the descriptor waits for its owner.
        return Err(Fatal);
    }
    if !stream.buffer().is_empty()
        && !stream.blocked.get()
        && let Err(raised) = send_pending(stream)
    {
        return stream.fatal_error(object, raised, "Fatal write error on socket transport");
    }
    if stream.buffer().is_empty() && stream.conn_lost.get() == 0 {
        stream.lose(object, None);
    }
    Ok(())
}

/// `transport.write_eof()`.
pub(crate) fn write_eof(object: &Ref, stream: &Stream) -> Result<(), Raised> {
    if stream.closing.get() || stream.eof.replace(true) {
        return Ok(());
    }
    if !stream.buffer().is_empty() && !stream.blocked.get() {
        send_now(object, stream)?;
    }
    if stream.buffer().is_empty() && stream.conn_lost.get() == 0 {
        return shut_down(stream).map_err(|error| raise_io(&error));
    }
    Ok(())
}

/// `get_write_buffer_size()`: what asyncio would answer, so the socket gets its chance first.
pub(crate) fn buffer_size(object: &Ref, stream: &Stream) -> Result<usize, Raised> {
    send_gathered(object, stream)?;
    Ok(stream.buffer().len())
}

/// `transport.abort()`: a connection that a write would have found broken is lost for that reason.
pub(crate) fn abort(object: &Ref, stream: &Stream) -> Result<(), Raised> {
    send_gathered(object, stream)?;
    stream.force_close(object, None);
    Ok(())
}

/// Sends what waits for the end of the turn.
fn send_gathered(object: &Ref, stream: &Stream) -> Result<(), Raised> {
    if !stream.blocked.get() && stream.conn_lost.get() == 0 && !stream.buffer().is_empty() {
        send_now(object, stream)?;
    }
    Ok(())
}

/// Sends what asyncio would have sent already, before a connection is closed by force. Whatever the socket
/// says, the connection is over.
pub(crate) fn send_last(stream: &Stream) {
    if !stream.buffer().is_empty()
        && !stream.blocked.get()
        && let Err(raised) = send_pending(stream)
    {
        drop(raised.take());
    }
}

/// Asks the protocol to pause if the buffer is above its high-water mark.
pub(crate) fn maybe_pause(object: &Ref, stream: &Stream) -> Result<(), Raised> {
    if stream.buffer().len() <= stream.marks.high.get() || stream.protocol_paused.replace(true) {
        return Ok(());
    }
    tell_protocol(object, stream, imports().pause_writing.as_ptr(), "protocol.pause_writing() failed", false)
        .map_err(|Fatal| Raised)
}

/// Tells the protocol to go on once the buffer is down to its low-water mark.
pub(crate) fn maybe_resume(object: &Ref, stream: &Stream) -> Result<(), Fatal> {
    if !stream.protocol_paused.get() || stream.buffer().len() > stream.marks.low.get() {
        return Ok(());
    }
    stream.protocol_paused.set(false);
    tell_protocol(object, stream, imports().resume_writing.as_ptr(), "protocol.resume_writing() failed", true)
}

/// Calls a flow-control method; its errors go to the exception handler, in asyncio's words.
fn tell_protocol(
    object: &Ref,
    stream: &Stream,
    name: *mut ffi::PyObject,
    message: &str,
    enter: bool,
) -> Result<(), Fatal> {
    let Some(protocol) = stream.receiver.protocol.get() else { return Ok(()) };
    let outcome = if enter {
        getattr(protocol.as_ptr(), name).and_then(|function| stream.in_context(|| call0(&function)))
    } else {
        method(&protocol, name, &[])
    };
    let Err(Raised) = outcome else { return Ok(()) };
    let exception = take_unless_fatal()?;
    let core = stream.core();
    let message = string_or_none(message);
    core.report(
        &exception,
        "protocol_failed",
        &[core.object(), object.as_ptr(), protocol.as_ptr(), exception.as_ptr(), message.as_ptr()],
    )
}

/// The connection ended under a sendfile that waits for the buffer to drain.
pub(crate) fn fail_empty_waiter(core: &Core, waiter: &Ref) -> Result<(), Fatal> {
    core.support("fail_waiter", &[waiter.as_ptr()])
}
