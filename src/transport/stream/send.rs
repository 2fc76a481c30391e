//! Sends what a protocol writes.
//!
//! A write is sent before `write` returns, or it is kept by reference until the next one comes, which is due
//! ([`write_habit`](crate::transport::base::write_habit)): header and body need one system call. What is kept is sent at
//! the end of the step at the latest, when `data_received` returns, by `drain()`, and before more is pending than the
//! high-water mark and the room in the kernel. So buffer sizes and `pause_writing` are the same as in asyncio. If the
//! loop is not running, every write is sent at once.

use std::io;
use std::net::Shutdown;

use pyo3::prelude::*;

use super::state::Stream;
use crate::capi::audit;
use crate::capi::buffer::{Buffer, bytes_from, is_scattered};
use crate::capi::error::{Outcome, no_memory, raise, raise_os_error, take_exception};
use crate::capi::fallible::string;
use crate::capi::imports::support;
use crate::capi::socket::{has_room, with_socket};
use crate::capi::{Borrowed, Exception, Fatal, Raised, Ref, This};
use crate::clock::ticks;
use crate::compat::version::TRANSPORT_SENDS_PIECES;
use crate::kernel::completion::complete;
use crate::kernel::core::Core;
use crate::recorder::event::Kind;
use crate::transport::base::closing::{fatal_error, finish};
use crate::transport::base::flow_control::{maybe_pause, maybe_resume};
use crate::transport::base::transport::TransportKind;
use crate::transport::base::write_buffer::{Done, Sent, send_one};
use crate::transport::base::write_habit::{Departure, may_wait};

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
    let departure = departure(this)?;
    let before = this.writing.buffer.len();
    let sent = match departure {
        Departure::Now if this.writing.is_empty() => match send_slice(this, content)? {
            Some(sent) => sent,
            None => return Ok(()),
        },
        _ => 0,
    };
    if sent == content.len() {
        return Ok(());
    }
    this.writing.buffer.push(data.to_owned(), sent)?;
    pushed(this, departure, before)
}

/// Decides when a write leaves that comes now. What other transports hold is sent first.
#[inline(always)]
fn departure(this: This<'_, Stream>) -> Result<Departure, Raised> {
    let core = this.base.core();
    core.send_others(this.writing.queued.get()).map_err(|Fatal| Raised)?;
    if this.writing.blocked.get() {
        return Ok(Departure::WithNext);
    }
    let departure = this.writing.habit.next(core.writes.step(), ticks());
    // In a step of the loop only: otherwise nothing comes after it that could send.
    Ok(if core.is_in_step() { departure } else { Departure::Now })
}

/// Called after a push, before which so many bytes were pending.
#[inline(always)]
fn pushed(this: This<'_, Stream>, departure: Departure, before: usize) -> Result<(), Raised> {
    if this.writing.blocked.get() {
        return maybe_pause(this);
    }
    let (buffer, high) = (&this.writing.buffer, this.base.marks.high.get());
    if departure == Departure::WithNext
        && !buffer.fills_a_call()
        && may_wait(before, buffer.len(), high, |size| has_room(this.descriptor(), size))
    {
        flush_later(this);
        return Ok(());
    }
    send_now(this)?;
    if this.writing.queued.get() && this.writing.is_empty() {
        this.writing.queued.set(!this.base.core().holds_nothing(this.object()));
    }
    maybe_pause(this)
}

/// Sends pending data at the end of the step.
#[inline(always)]
fn flush_later(this: This<'_, Stream>) {
    if !this.writing.queued.replace(true) {
        this.base.core().flush_later(this.object().to_owned(), flush);
    }
}

/// Sends pending data for a caller in Python, which gets a fatal error.
fn send_now(this: This<'_, Stream>) -> Result<(), Raised> {
    let sent = send_pending(this, Kind::Write);
    sent.map(drop).or_else(|raised| Ok(fatal_error(this, raised, WRITE_FAILED)?))
}

/// Sends as much as the socket accepts. An error of the socket becomes a Python error. `kind` tells the flight recorder
/// whether the loop sends or a callback.
#[inline(always)]
fn send_pending(this: This<'_, Stream>, kind: Kind) -> Result<Sent, Raised> {
    if this.base.core().probe.recorder.is_on() { send_recorded(this, kind) } else { send_unrecorded(this) }
}

#[cold]
fn send_recorded(this: This<'_, Stream>, kind: Kind) -> Result<Sent, Raised> {
    let recorder = &this.base.core().probe.recorder;
    let pending = || this.writing.buffer.len();
    recorder.sends(kind, this.descriptor(), pending);
    let sent = send_unrecorded(this);
    recorder.sent(this.descriptor(), pending);
    sent
}

fn send_unrecorded(this: This<'_, Stream>) -> Result<Sent, Raised> {
    let core = this.base.core();
    core.note_io();
    let mut done = Done::default();
    let outcome = this.writing.buffer.send(this.descriptor(), &mut done);
    match outcome {
        Ok(Sent::All) => this.writing.blocked.set(false),
        Ok(Sent::Blocked) => this.block(),
        Err(_) => {
            // The connection is broken, so nothing more is sent.
            this.writing.blocked.set(true);
            this.drop_unsent();
        }
    }
    core.bytes_cache.keep_all(&mut done);
    this.writing.habit.note_sent(ticks(), matches!(outcome, Ok(Sent::Blocked)));
    outcome.map_err(|error| raise_os_error(&error))
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

/// `write` of a bytearray or memoryview. Its content may change after the call, so it is sent or copied now.
fn write_other(this: This<'_, Stream>, data: Borrowed<'_>) -> Result<(), Raised> {
    if !data.is_bytes_like() {
        return Err(refuse(this, data));
    }
    check_write(this)?;
    match Buffer::readable(&data) {
        Ok(view) => {
            this.base.core().send_others(this.writing.queued.get()).map_err(|Fatal| Raised)?;
            write_slice(this, view.as_slice())
        }
        Err(_) if is_scattered() => scattered(this),
        Err(raised) => Err(raised),
    }
}

/// The TypeError of asyncio's own `write`. Its text differs between versions.
#[cold]
fn refuse(this: This<'_, Stream>, data: Borrowed<'_>) -> Raised {
    let refused = support(this.py(), "refuse_stream_data").map_err(Raised::from);
    match refused.and_then(|refuse| Ref::from(refuse).call(&[this.object(), data])) {
        Err(raised) => raised,
        // asyncio accepts this object, so it is a type that this file does not know.
        Ok(_) => Exception::TypeError.raise("data argument must be a bytes-like object"),
    }
}

/// Handles a non-contiguous buffer, for which an error is set. Sends earlier writes first, because asyncio would have
/// sent them already and may have found the connection broken. Then fails as asyncio does.
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
    Ok(fatal_error(this, raise(exception), WRITE_FAILED)?)
}

/// Writes a slice, whose memory is not kept. It is sent now, with what was held before it; the rest is copied to the
/// buffer. The caller has sent what other transports hold.
pub(crate) fn write_slice(this: This<'_, Stream>, data: &[u8]) -> Result<(), Raised> {
    if data.is_empty() {
        return Ok(());
    }
    if this.base.life.is_lost() {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    let sent = if this.writing.is_empty() && !this.writing.blocked.get() {
        match send_slice(this, data)? {
            Some(sent) => sent,
            None => return Ok(()),
        }
    } else {
        0
    };
    if sent == data.len() {
        return Ok(());
    }
    this.writing.buffer.push(bytes_from(&data[sent..])?, 0)?;
    pushed(this, Departure::Now, 0)
}

/// Sends a slice before which no data is pending, until the socket is full. Returns how much was sent; `None` after an
/// error, which ends the connection.
#[inline(always)]
fn send_slice(this: This<'_, Stream>, data: &[u8]) -> Result<Option<usize>, Raised> {
    let core = this.base.core();
    core.note_io();
    let mut sent = 0;
    // The registration is edge-triggered: sending must go on until the socket would block, or there is no further edge.
    while sent < data.len() {
        let rest = &data[sent..];
        core.probe.recorder.sends(Kind::Write, this.descriptor(), || rest.len());
        let outcome = send_one(this.descriptor(), rest);
        core.probe.recorder.sent(this.descriptor(), || rest.len() - outcome.as_ref().unwrap_or(&0));
        match outcome {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                this.block();
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                fatal_error(this, raise_os_error(&error), WRITE_FAILED)?;
                return Ok(None);
            }
        }
    }
    this.writing.habit.note_sent(ticks(), sent < data.len());
    Ok(Some(sent))
}

/// `transport.writelines(list)`.
pub(crate) fn writelines(this: This<'_, Stream>, list: Borrowed<'_>) -> Result<(), Raised> {
    if TRANSPORT_SENDS_PIECES {
        check_writable(
            this,
            "Cannot call writelines() after write_eof()",
            "unable to writelines; sendfile is in progress",
        )?;
        // asyncio checks `if not list_of_data`, so it accepts None and 0 too.
        if !list.is_true()? {
            return Ok(());
        }
    } else if !this.has_no_own_attributes() {
        return write_joined(this, list);
    }
    // All items are checked before the first one is sent, so that nothing is sent if one is wrong.
    let items = match list.to_list() {
        Ok(items) => items,
        Err(raised) if TRANSPORT_SENDS_PIECES => return Err(raised),
        Err(raised) => {
            drop(raised.take());
            return write_joined(this, list);
        }
    };
    let mut pieces = Vec::new();
    pieces.try_reserve_exact(items.list_len()).map_err(|_| no_memory())?;
    for index in 0..items.list_len() {
        // Owned, and read by index each time: another program part can find the list with `gc.get_objects` and change
        // it.
        let item = items.list_item(index)?;
        let piece = if item.bytes().is_some() {
            item
        } else {
            match Buffer::readable(&item) {
                Ok(view) => bytes_from(view.as_slice())?,
                Err(_) if TRANSPORT_SENDS_PIECES && is_scattered() => return scattered(this),
                Err(raised) if TRANSPORT_SENDS_PIECES => {
                    skip_piece(&item, raised)?;
                    continue;
                }
                Err(raised) => {
                    drop(raised.take());
                    return write_joined(this, items.borrow());
                }
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
    pieces.retain(|piece| piece.bytes().is_some_and(|content| !content.is_empty()));
    if pieces.is_empty() {
        return Ok(());
    }
    if let Err(raised) = audit_pieces(this) {
        return Ok(fatal_error(this, raised, WRITE_FAILED)?);
    }
    if this.base.life.is_lost() {
        // An audit hook has closed the transport.
        return Ok(());
    }
    let departure = departure(this)?;
    let before = this.writing.buffer.len();
    this.writing.buffer.reserve(pieces.len())?;
    pieces.into_iter().try_for_each(|piece| this.writing.buffer.push(piece, 0))?;
    pushed(this, departure, before)
}

/// Raises the audit event of the `sendmsg` by which asyncio sends what its write buffer holds.
#[inline(always)]
fn audit_pieces(this: This<'_, Stream>) -> Result<(), Raised> {
    if !TRANSPORT_SENDS_PIECES {
        return Ok(());
    }
    audit::sends_pieces(|| Ok(this.python_socket(this.py())?.unwrap_or_else(Ref::none)))
}

/// Asks asyncio's `writelines`, since 3.12, whether it ignores an item that is not bytes-like. Otherwise raises
/// asyncio's error for the item.
#[cold]
fn skip_piece(item: &Ref, raised: Raised) -> Result<(), Raised> {
    let exception = raised.take();
    let skips = support(item.py(), "skips_piece")?.call1((item.bind(item.py()),))?.is_truthy()?;
    if skips { Ok(()) } else { Err(raise(exception)) }
}

/// `writelines` of asyncio until 3.11: it joins the items, which raises the right error for a wrong item, and calls
/// `write`, which the program may have set on the transport.
#[cold]
fn write_joined(this: This<'_, Stream>, items: Borrowed<'_>) -> Result<(), Raised> {
    let joined = bytes_from(&[])?.call_method(&string("join")?, &[items])?;
    this.object().call_method(&string("write")?, &[joined.borrow()]).map(drop)
}

/// Sends what a step has held, at its end.
fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<Stream>() else { return Ok(()) };
    this.writing.queued.set(false);
    flush_now(this, core)
}

/// Sends what is held, from the loop: at the end of a step, or after `data_received`.
#[inline(always)]
pub(super) fn flush_now(this: This<'_, Stream>, core: &Core) -> Result<(), Fatal> {
    if this.base.life.is_lost() || this.writing.is_empty() || this.writing.blocked.get() {
        return Ok(());
    }
    this.writing.habit.end_step(ticks());
    after_flush(this, core, send_pending(this, Kind::Flush))
}

/// The same for a socket that was full, and has room again.
pub(super) fn flush_blocked(this: This<'_, Stream>, core: &Core) -> Result<(), Fatal> {
    let before = this.writing.buffer.len();
    if this.base.life.is_lost() || before == 0 {
        return Ok(());
    }
    let sent = match audit_pieces(this) {
        // An audit hook has closed the transport.
        Ok(()) if this.base.life.is_lost() => return Ok(()),
        Ok(()) => send_pending(this, Kind::Flush),
        Err(raised) => {
            this.drop_unsent();
            Err(raised)
        }
    };
    core.spins.note_bytes(before.saturating_sub(this.writing.buffer.len()));
    after_flush(this, core, sent)
}

#[inline(always)]
fn after_flush(this: This<'_, Stream>, core: &Core, sent: Result<Sent, Raised>) -> Result<(), Fatal> {
    match sent {
        Ok(_) => drained(this, core),
        Err(raised) => {
            let waiter = this.writing.empty_waiter.get();
            fatal_error(this, raised, WRITE_FAILED)?;
            waiter.map_or(Ok(()), |waiter| core.support("fail_waiter", &[waiter.borrow()]))
        }
    }
}

/// Called after the loop has sent data. Resumes the protocol, and does what had to wait until all data was sent.
#[inline(always)]
fn drained(this: This<'_, Stream>, core: &Core) -> Result<(), Fatal> {
    if !this.base.protocol_paused.get() {
        return after_send(this, core);
    }
    // A fatal error of `resume_writing` is returned after the rest is done.
    let mut outcome = Outcome::default();
    outcome.note(maybe_resume(this));
    outcome.note(after_send(this, core));
    outcome.finish()
}

#[inline(always)]
fn after_send(this: This<'_, Stream>, core: &Core) -> Result<(), Fatal> {
    if !this.writing.is_empty() {
        // Not everything was sent, or `resume_writing` has written more. So the protocol may have to pause.
        return maybe_pause(this).or_else(|raised| core.unraisable(raised));
    }
    if let Some(waiter) = this.writing.empty_waiter.get() {
        complete(core, &waiter)?;
    }
    if this.base.life.is_closing() {
        return finish(this, core);
    }
    if this.writing.eof.get() {
        // If this fails because the peer is gone, the next read will notice that.
        drop(shut_down(this));
    }
    if !this.base.awaits_data() {
        this.update_ownership();
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
        return shut_down(this).map_err(|error| raise_os_error(&error));
    }
    Ok(())
}

/// Sends what is held.
pub(crate) fn send_gathered(this: This<'_, Stream>) -> Result<(), Raised> {
    let waits = !this.writing.blocked.get() && !this.writing.is_empty();
    if !waits || this.base.life.is_lost() {
        return Ok(());
    }
    this.writing.habit.forget();
    send_now(this)
}

/// Sends what is held before the connection is closed by force, because asyncio would have sent it already. Ignores
/// errors.
pub(super) fn send_last(this: This<'_, Stream>) {
    if !this.writing.is_empty()
        && !this.writing.blocked.get()
        && let Err(raised) = send_pending(this, Kind::Write)
    {
        drop(raised.take());
    }
}
