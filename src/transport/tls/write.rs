//! Encrypts what the application's protocol writes, and passes it to the stream transport.
//!
//! As with connections without TLS, a write waits while the next one is due; the habit is that of the stream transport.
//! The queue has plaintext, so header and body become one record. Nothing is encrypted while the socket is full. The
//! queue counts as part of the write buffer, so its size is that of asyncio's.

use super::connection::{Connection, EngineUse, TlsState, call_named, control_app_writing};
use super::engine::Engine;
use super::records::{RECORD, Wrote};
use crate::capi::buffer::{Buffer, bytes_from};
use crate::capi::error::{handling, raise};
use crate::capi::fallible::string_or_none;
use crate::capi::{Exception, Fatal, Raised, Ref, This};
use crate::clock::ticks;
use crate::kernel::core::{Core, RECEIVE};
use crate::transport::base::protocol_sink::Delivery;
use crate::transport::base::write_buffer::Done;
use crate::transport::base::write_habit::Departure;
use crate::transport::stream::send::write_slice;
use crate::transport::stream::state::Stream;

/// How many bytes are encrypted before they are sent.
const BATCH: usize = RECEIVE;

/// Is new data queued? If not, asyncio's code counts the write as one to a closed connection.
#[inline(always)]
pub(super) fn accepts(this: This<'_, Connection>) -> bool {
    matches!(this.state.get(), TlsState::Wrapped | TlsState::Handshake)
}

/// A `bytes` object itself, or else a copy, because the content of another object may change after the call.
pub(super) fn immutable(data: &Ref) -> Result<Ref, Raised> {
    if data.exact_bytes().is_some() {
        return Ok(data.clone_ref());
    }
    bytes_from(Buffer::readable(data)?.as_slice())
}

/// Queues a `bytes` object.
#[inline(always)]
pub(super) fn push(this: This<'_, Connection>, data: Ref) -> Result<(), Raised> {
    if data.exact_bytes().unwrap_or_default().is_empty() { Ok(()) } else { this.queue.push(data, 0) }
}

/// Called after a push. Decides when to send.
#[inline(always)]
pub(super) fn pushed(this: This<'_, Connection>) -> Result<(), Raised> {
    let pending = this.queue.len();
    if this.state.get() != TlsState::Wrapped || pending == 0 {
        // The data is sent after the handshake.
        return Ok(());
    }
    if this.stream_paused.writing.get() {
        return control_app_writing(this, this.output_size());
    }
    let Some(core) = this.core() else { return Ok(()) };
    core.send_others(this.queued.get()).map_err(|Fatal| Raised)?;
    if this.in_engine() || (pending <= this.outgoing.high.get() && is_held(this, core)) {
        if !this.queued.replace(true) {
            core.flush_later(this.object().clone_ref(), flush);
            core.wake_if_parked();
        }
        return Ok(());
    }
    write_now(this)
}

/// Does a write that comes now wait for the next one?
#[inline(always)]
fn is_held(this: This<'_, Connection>, core: &Core) -> bool {
    this.with_stream(|stream| stream.writing.habit.next(core.writes.step(), ticks()) == Departure::WithNext)
        && core.is_in_step()
}

/// The step has ended, and what is held is sent without the write that was due.
fn end_step(this: This<'_, Connection>) {
    this.with_stream(|stream| {
        stream.writing.habit.end_step(ticks());
        true
    });
}

/// Encrypts and sends the queue. An error closes the connection.
pub(super) fn write_now(this: This<'_, Connection>) -> Result<(), Raised> {
    write_all(this).or_else(|raised| fail(this, raised))
}

/// Sends the queue at the end of a step.
fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<Connection>() else { return Ok(()) };
    this.queued.set(false);
    if this.state.get() != TlsState::Wrapped || this.queue.is_empty() {
        return Ok(());
    }
    end_step(this);
    this.in_context(|| write_now(this)).or_else(|raised| core.unraisable(raised))
}

/// The end of asyncio's `_do_read`: sends the queue, and the engine's own output.
#[inline(always)]
pub(super) fn write_pending(this: This<'_, Connection>) -> Result<(), Raised> {
    if this.queue.is_empty() {
        return process_outgoing(this);
    }
    end_step(this);
    write_all(this)
}

/// asyncio's `_do_write`: encrypts and sends the queue, until it is empty or the socket is full.
pub(super) fn write_all(this: This<'_, Connection>) -> Result<(), Raised> {
    let Some(engine) = this.engine() else { return Ok(()) };
    let mut emptied = false;
    while !this.queue.is_empty() && this.engine_use.get() == EngineUse::Idle {
        // Before the shutdown the whole queue is encrypted, even if it cannot be sent yet.
        if this.stream_paused.writing.get() && this.state.get() != TlsState::Flushing {
            break;
        }
        let progress = encrypt(this, engine)?;
        emptied = send_output(this, engine)?;
        if !progress {
            break;
        }
    }
    if emptied { control_app_writing(this, 0) } else { process_outgoing(this) }
}

/// asyncio's `_process_outgoing`: passes the engine's output to the stream transport.
#[inline(always)]
pub(super) fn process_outgoing(this: This<'_, Connection>) -> Result<(), Raised> {
    let emptied = match this.engine() {
        Some(engine) => send_output(this, engine)?,
        None => true,
    };
    control_app_writing(this, if emptied { 0 } else { this.output_size() })
}

/// Passes ciphertext to the stream transport. True if none is left.
fn send_output(this: This<'_, Connection>, engine: &Engine) -> Result<bool, Raised> {
    if engine.output_size() > 0
        && let Some(core) = this.core()
    {
        // Before the ciphertext is taken: this connection may be in the queue itself, and must not send what follows.
        core.send_others(this.queued.get()).map_err(|Fatal| Raised)?;
    }
    if this.stream_paused.writing.get() || this.in_engine() {
        return Ok(false);
    }
    if engine.output_size() == 0 {
        return Ok(true);
    }
    let transport = this.transport.get();
    let Some(stream) = transport.as_ref().and_then(|transport| transport.downcast::<Stream>()) else {
        return Ok(false);
    };
    engine.send_output(this.core(), |ciphertext| write_slice(stream, ciphertext))?;
    Ok(true)
}

/// Encrypts the next [`BATCH`] bytes of the queue, or the whole queue if the socket is full. False if OpenSSL needs
/// data from the peer first.
fn encrypt(this: This<'_, Connection>, engine: &Engine) -> Result<bool, Raised> {
    let Some(core) = this.core() else { return Ok(false) };
    if let Engine::Native(native) = engine {
        // The vector is returned to the loop after its content was sent. If the socket is full, the content has to
        // stay, so a scratch vector is not used.
        let output = if this.stream_paused.writing.get() { Vec::new() } else { core.scratch.take() };
        native.io.exchange_output(output, true);
    }
    let outcome = this.use_engine(|| fill(this, engine, core));
    if let Engine::Native(native) = engine {
        native.io.enable_notify();
    }
    if outcome.is_err() {
        this.engine_use.set(EngineUse::Broken);
    }
    outcome
}

fn fill(this: This<'_, Connection>, engine: &Engine, core: &Core) -> Result<bool, Raised> {
    // Dropping these objects may run Python code, so they are kept until the queue is no longer used.
    let mut done = Done::default();
    let limit = if this.stream_paused.writing.get() { usize::MAX } else { BATCH };
    let mut progress = false;
    while let Some((first, sent)) = this.queue.front() {
        if progress && engine.output_size() >= limit {
            break;
        }
        match offer(this, engine, core, &first, sent)? {
            // A subclass of SSLObject may close the connection in its `write`, so the queue may be shorter now.
            Wrote::Bytes(count) => {
                let queue = &this.queue;
                queue.advance(count.min(queue.len()), &mut done);
            }
            Wrote::WantRead => {
                progress = false;
                break;
            }
        }
        progress = true;
    }
    core.bytes_cache.keep_all(&mut done);
    Ok(progress)
}

/// Encrypts once: the first object of the queue, or several small ones joined to one record.
///
/// After SSL_ERROR_WANT_READ, OpenSSL requires that the next write offers at least the same bytes. It does: the queue
/// has only grown since, and a longer queue never makes the offer shorter.
fn offer(
    this: This<'_, Connection>,
    engine: &Engine,
    core: &Core,
    first: &Ref,
    sent: usize,
) -> Result<Wrote, Raised> {
    let rest = first.exact_bytes().and_then(|piece| piece.get(sent..)).unwrap_or_default();
    let wanted = this.queue.len().min(RECORD);
    if rest.len() < wanted {
        let mut joined = core.scratch.take();
        this.queue.gather(&mut joined, wanted);
        let wrote = engine.encrypt(&joined, None);
        core.scratch.give_back(joined);
        wrote
    } else {
        let size = rest.len().min(BATCH);
        let whole = (sent == 0 && size == rest.len()).then_some(first);
        engine.encrypt(&rest[..size], whole)
    }
}

/// Calls [`send_last`] for the TLS connection that is the protocol of a stream transport.
pub(super) fn send_last_of(connection: &Ref) {
    connection.with_native(send_last);
}

/// Sends the queue for a `drain()` of asyncio's streams on the TLS connection that is the protocol of a stream transport.
pub(super) fn drain(connection: &Ref) {
    connection.with_native(|this: This<'_, Connection>| {
        if this.sink.delivery() == Delivery::Reader && !this.queue.is_empty() {
            this.with_stream(|stream| {
                stream.writing.habit.forget();
                true
            });
            send_last(this);
        }
    });
}

/// Sends the queue before the connection is closed by force, because asyncio would have sent it when it was written.
/// Ignores errors.
pub(super) fn send_last(this: This<'_, Connection>) {
    if this.state.get() == TlsState::Wrapped
        && !this.queue.is_empty()
        && let Err(raised) = write_all(this)
    {
        drop(raised.take());
    }
}

/// asyncio's `except Exception: self._fatal_error(...)`, for the error that is set. An error that is not an `Exception`
/// is raised to the caller.
#[cold]
pub(super) fn fail(this: This<'_, Connection>, raised: Raised) -> Result<(), Raised> {
    let exception = raised.take();
    // asyncio would have sent data that was written before the error, so it is sent first.
    send_last(this);
    if !Exception::Exception.matches(&exception) {
        return Err(raise(exception));
    }
    let message = string_or_none("Fatal error on SSL protocol");
    handling(&exception, || call_named(this, "_fatal_error", &[exception.borrow(), message.borrow()]))
}
