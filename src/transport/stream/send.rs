//! From the protocol to the socket.
//!
//! A small immutable write is kept by reference and leaves at the end of the turn, or, if it is made while the protocol
//! receives, when it has received: together with whatever else is written to the same connection by then, so that header
//! and body cost one system call. Chunks of 64 KiB go out two by two, which costs a tenth less. Above [`AT_ONCE`] bytes,
//! above the high-water mark, or outside a running loop it is sent immediately, so that buffer sizes and `pause_writing`
//! are what asyncio's would be. Nothing written is held while the loop sleeps.

use std::io;
use std::net::Shutdown;

use super::state::Stream;
use crate::capi::buffer::{Buffer, bytes_from, is_scattered};
use crate::capi::error::{Outcome, raise, raise_io, take_exception};
use crate::capi::fallible::string;
use crate::capi::imports::support;
use crate::capi::socket::with_socket;
use crate::capi::{Borrowed, Exception, Fatal, Raised, Ref, This};
use crate::compat::version::TRANSPORT_SENDS_PIECES;
use crate::event_loop::completion::complete;
use crate::event_loop::core::Core;
use crate::transport::base::closing::{fatal_error, finish};
use crate::transport::base::flow_control::{maybe_pause, maybe_resume};
use crate::transport::base::sizes::AT_ONCE;
use crate::transport::base::transport::TransportKind;
use crate::transport::base::write_buffer::{Done, Sent, send_one};

const WRITE_FAILED: &str = "Fatal write error on socket transport";
const WRITE_AFTER_LOST: &str = "write_after_lost";

/// `transport.write(data)`.
#[inline(always)]
pub(crate) fn write(this: This<'_, Stream>, data: Borrowed<'_>) -> Result<(), Raised> {
    let Some(content) = data.bytes() else { return write_other(this, data) };
    check_write(this)?;
    if content.is_empty() {
        return Ok(());
    }
    if this.base.life.is_lost() {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    this.writing.buffer.push(data.to_owned(), 0);
    pushed(this)
}

/// After a push: decides whether the socket gets it now.
#[inline(always)]
fn pushed(this: This<'_, Stream>) -> Result<(), Raised> {
    if this.writing.blocked.get() {
        return maybe_pause(this);
    }
    let pending = this.writing.buffer.len();
    let core = this.base.core();
    if pending <= AT_ONCE && pending <= this.base.marks.high.get() {
        if core.is_delivering(&this.object()) {
            return Ok(());
        }
        if core.is_running() {
            flush_later(this);
            return Ok(());
        }
    }
    send_now(this)?;
    maybe_pause(this)
}

/// Has what is pending sent at the end of the turn.
#[inline(always)]
pub(super) fn flush_later(this: This<'_, Stream>) {
    if !this.writing.queued.replace(true) {
        let core = this.base.core();
        core.flush_later(this.object().to_owned(), flush);
        core.wake_if_parked();
    }
}

/// Sends what is pending on behalf of a caller in Python, to whom a fatal error belongs.
fn send_now(this: This<'_, Stream>) -> Result<(), Raised> {
    match send_pending(this) {
        Ok(_) => Ok(()),
        Err(raised) => Ok(fatal_error(this, raised, WRITE_FAILED)?),
    }
}

/// Sends as much as the socket takes. An error of the socket is set as a Python error.
fn send_pending(this: This<'_, Stream>) -> Result<Sent, Raised> {
    let core = this.base.core();
    core.note_io();
    let mut done = Done::default();
    let outcome = this.writing.buffer.send(this.descriptor(), &mut done);
    match outcome {
        Ok(Sent::All) => this.writing.blocked.set(false),
        Ok(Sent::Blocked) => this.block(),
        Err(_) => {
            // The connection is lost: nothing more is sent.
            this.writing.blocked.set(true);
            this.drop_unsent();
        }
    }
    done.into_iter().for_each(|data| core.bytes_cache.keep(data));
    outcome.map_err(|error| raise_io(&error))
}

#[inline(always)]
fn check_write(this: This<'_, Stream>) -> Result<(), Raised> {
    check_writable(this, "Cannot call write() after write_eof()", "unable to write; sendfile is in progress")
}

#[inline(always)]
fn check_writable(this: This<'_, Stream>, after_eof: &str, in_sendfile: &str) -> Result<(), Raised> {
    if this.writing.eof.get() {
        return Err(Exception::RuntimeError.raise(after_eof));
    }
    if !this.writing.empty_waiter.is_empty() {
        return Err(Exception::RuntimeError.raise(in_sendfile));
    }
    Ok(())
}

/// `write` of a bytearray or memoryview. Its content may change as soon as the method returns, so it is sent or copied
/// now.
fn write_other(this: This<'_, Stream>, data: Borrowed<'_>) -> Result<(), Raised> {
    if !data.is_bytes_like() {
        return Err(refuse(this, data));
    }
    check_write(this)?;
    match Buffer::readable(&data) {
        Ok(view) => write_slice(this, view.as_slice()),
        Err(_) if is_scattered() => scattered(this),
        Err(raised) => Err(raised),
    }
}

/// The TypeError of asyncio's own `write`, whose words change from version to version.
#[cold]
fn refuse(this: This<'_, Stream>, data: Borrowed<'_>) -> Raised {
    let refused = support(this.py(), "refuse_stream_data").map_err(Raised::from);
    match refused.and_then(|refuse| Ref::from(refuse).call(&[this.object(), data])) {
        Err(raised) => raised,
        // An asyncio that writes this: then it must be known here as well.
        Ok(_) => Exception::TypeError.raise("data argument must be a bytes-like object"),
    }
}

/// Data that does not lie in memory in one piece, with the error that says so. What was written before has left at once
/// on asyncio, or has found the connection broken.
#[cold]
fn scattered(this: This<'_, Stream>) -> Result<(), Raised> {
    let exception = take_exception();
    send_gathered(this)?;
    if this.base.life.is_lost() {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    if !this.writing.is_empty() && !TRANSPORT_SENDS_PIECES {
        return Err(Exception::TypeError.raise("can't set bytearray slice from memoryview"));
    }
    raise(exception);
    Ok(fatal_error(this, Raised, WRITE_FAILED)?)
}

/// Sends what the socket takes of `data` now, in its turn behind what is pending, and keeps a copy of the rest.
pub(crate) fn write_slice(this: This<'_, Stream>, data: &[u8]) -> Result<(), Raised> {
    if data.is_empty() {
        return Ok(());
    }
    if this.base.life.is_lost() {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    let mut sent = 0;
    if this.writing.is_empty() && !this.writing.blocked.get() {
        this.base.core().note_io();
        match send_one(this.descriptor(), data) {
            Ok(count) => sent = count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => this.block(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(fatal_error(this, raise_io(&error), WRITE_FAILED)?),
        }
    }
    if sent == data.len() {
        return Ok(());
    }
    this.writing.buffer.push(bytes_from(&data[sent..])?, 0);
    if sent > 0 {
        // A short send does not make the socket full; going on until it says so brings the edge.
        send_now(this)?;
    }
    pushed(this)
}

/// `transport.writelines(list)`.
pub(crate) fn writelines(this: This<'_, Stream>, list: Borrowed<'_>) -> Result<(), Raised> {
    if TRANSPORT_SENDS_PIECES {
        check_writable(
            this,
            "Cannot call writelines() after write_eof()",
            "unable to writelines; sendfile is in progress",
        )?;
        // As asyncio asks: None and 0 are no lists, but nothing is to be written either.
        if !list.is_true()? {
            return Ok(());
        }
    }
    // All of it is looked at before any of it is sent, so that a wrong item sends nothing.
    let items = list.to_list()?;
    let mut pieces = Vec::with_capacity(items.list_len());
    for index in 0..items.list_len() {
        // Held, and looked for each time: the collector shows the list to a program that asks for all objects.
        let item = items.list_item(index)?;
        let piece = if item.bytes().is_some() {
            item
        } else {
            match Buffer::readable(&item) {
                Ok(view) => bytes_from(view.as_slice())?,
                Err(_) if TRANSPORT_SENDS_PIECES && is_scattered() => return scattered(this),
                Err(raised) if TRANSPORT_SENDS_PIECES => return Err(raised),
                Err(raised) => return write_joined(this, &items, raised),
            }
        };
        pieces.push(piece);
    }
    if !TRANSPORT_SENDS_PIECES {
        check_write(this)?;
    }
    if this.base.life.is_lost() {
        return if pieces.is_empty() { Ok(()) } else { this.write_to_lost(WRITE_AFTER_LOST) };
    }
    let before = this.writing.buffer.len();
    for piece in pieces {
        if piece.bytes().is_some_and(|content| !content.is_empty()) {
            this.writing.buffer.push(piece, 0);
        }
    }
    if this.writing.buffer.len() > before { pushed(this) } else { Ok(()) }
}

/// asyncio's `writelines` until 3.11 joins what it is given, which says what is wrong with it.
#[cold]
fn write_joined(this: This<'_, Stream>, items: &Ref, raised: Raised) -> Result<(), Raised> {
    drop(raised.take());
    let joined = bytes_from(&[])?.call_method(&string("join")?, &[items.borrow()])?;
    write(this, joined.borrow())
}

/// The step at the end of a turn that sends what the turn has written.
pub(super) fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    object.downcast().map_or(Ok(()), |this| flush_now(this, core))
}

/// Sends what is pending from the loop: at the end of a turn, when the protocol has received, or when there is room.
#[inline(always)]
pub(super) fn flush_now(this: This<'_, Stream>, core: &Core) -> Result<(), Fatal> {
    this.writing.queued.set(false);
    if this.base.life.is_lost() || this.writing.is_empty() {
        return Ok(());
    }
    match send_pending(this) {
        Ok(_) => drained(this, core),
        Err(raised) => {
            let waiter = this.writing.empty_waiter.get();
            fatal_error(this, raised, WRITE_FAILED)?;
            waiter.map_or(Ok(()), |waiter| core.support("fail_waiter", &[waiter.borrow()]))
        }
    }
}

/// After a send from the loop: resumes the protocol, and completes what waited for the end of the data.
#[inline(always)]
fn drained(this: This<'_, Stream>, core: &Core) -> Result<(), Fatal> {
    if !this.base.protocol_paused.get() {
        return after_send(this, core);
    }
    // A fatal error of resume_writing leaves when the rest is done.
    let mut outcome = Outcome::default();
    outcome.note(maybe_resume(this));
    outcome.note(after_send(this, core));
    outcome.finish()
}

#[inline(always)]
fn after_send(this: This<'_, Stream>, core: &Core) -> Result<(), Fatal> {
    if !this.writing.is_empty() {
        // Not all went out, or resume_writing wrote more: the protocol may have to pause.
        return maybe_pause(this).or_else(|raised| core.unraisable(raised));
    }
    if let Some(waiter) = this.writing.empty_waiter.get() {
        complete(core, &waiter)?;
    }
    if this.base.life.is_closing() {
        return finish(this, core);
    }
    if this.writing.eof.get() {
        // A peer that is gone already is noticed by the next read.
        drop(shut_down(this));
    }
    if !this.base.awaits_data() {
        this.settle();
    }
    Ok(())
}

/// Half-closes the socket.
fn shut_down(this: This<'_, Stream>) -> io::Result<()> {
    this.base.core().note_io();
    with_socket(this.descriptor(), |socket| socket.shutdown(Shutdown::Write))
}

/// `transport.write_eof()`.
pub(super) fn write_eof(this: This<'_, Stream>) -> Result<(), Raised> {
    if this.base.life.is_closing() || this.writing.eof.replace(true) {
        return Ok(());
    }
    send_gathered(this)?;
    if this.writing.is_empty() && !this.base.life.is_lost() {
        return shut_down(this).map_err(|error| raise_io(&error));
    }
    Ok(())
}

/// Sends what waits for the end of the turn.
pub(super) fn send_gathered(this: This<'_, Stream>) -> Result<(), Raised> {
    let waits = !this.writing.blocked.get() && !this.writing.is_empty();
    if waits && !this.base.life.is_lost() { send_now(this) } else { Ok(()) }
}

/// Sends what asyncio would have sent already, before a connection is closed by force. Whatever the socket says, the
/// connection is over.
pub(super) fn send_last(this: This<'_, Stream>) {
    if !this.writing.is_empty()
        && !this.writing.blocked.get()
        && let Err(raised) = send_pending(this)
    {
        drop(raised.take());
    }
}
