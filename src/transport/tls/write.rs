//! From the application's protocol to the stream transport.
//!
//! As with plain connections, a small write is kept and leaves at the end of the turn, or when the protocol has
//! received: here as plaintext, so that header and body become one record. Nothing is encrypted while the
//! socket is full: what waits then is plaintext too, and counts as asyncio's buffers do.

use pyo3::ffi;

use super::connection::{Connection, State, connection_of};
use super::engine::{Engine, Output};
use super::records::{RECORD, Wrote};
use crate::capi::buffer::{Buffer, bytes_from, bytes_slice};
use crate::capi::{Fatal, Raised, Ref};
use crate::event_loop::core::{Core, RECEIVE};
use crate::transport::base::sizes::AT_ONCE;
use crate::transport::base::write_buffer::Done;
use crate::transport::stream::send::write_slice;
use crate::transport::stream::state::Stream;

/// The ciphertext that is made before the socket gets it.
const BATCH: usize = RECEIVE;

/// Is data that is written now queued? If not, asyncio's code counts the write as one to a closed connection.
#[inline(always)]
pub(super) fn accepts(connection: &Connection) -> bool {
    matches!(connection.state.get(), State::Wrapped | State::Handshake)
}

/// `bytes` as they are, anything else as a copy: its content may change as soon as we return.
pub(super) fn immutable(data: *mut ffi::PyObject) -> Result<Ref, Raised> {
    // SAFETY: a borrowed argument of the running call.
    unsafe {
        if ffi::PyBytes_CheckExact(data) != 0 {
            return Ok(Ref::from_borrowed(data));
        }
    }
    bytes_from(Buffer::readable(data)?.as_slice())
}

/// Queues a `bytes` object.
#[inline(always)]
pub(super) fn push(connection: &Connection, data: Ref) {
    // SAFETY: a bytes object, alive for the test.
    if !unsafe { bytes_slice(data.as_ptr()) }.is_empty() {
        connection.queue().push(data, 0);
    }
}

/// After a push: decide whether the socket gets it now.
#[inline(always)]
pub(super) fn pushed(object: &Ref, connection: &Connection) -> Result<(), Raised> {
    let pending = connection.queue().len();
    if connection.state.get() != State::Wrapped || pending == 0 {
        // It leaves after the handshake.
        return Ok(());
    }
    if connection.ssl_writing_paused.get() {
        return connection.control_app_writing(object, connection.output_size());
    }
    let small = pending <= AT_ONCE && pending <= connection.outgoing_high.get();
    let Some(core) = connection.core() else { return Ok(()) };
    if small && core.is_delivering(object) {
        return Ok(());
    }
    if (small && core.is_running()) || connection.in_engine.get() {
        if !connection.queued.replace(true) {
            core.flush_later(object.clone_ref(), flush);
            core.wake_if_parked();
        }
        return Ok(());
    }
    write_now(object, connection)
}

/// Encrypts and sends what waits; a failure ends the connection.
pub(super) fn write_now(object: &Ref, connection: &Connection) -> Result<(), Raised> {
    match write_all(object, connection) {
        Ok(()) => Ok(()),
        Err(raised) => connection.fatal_error(object, raised),
    }
}

/// At the end of a turn.
pub(super) fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: flushes are queued for connections only.
    let connection = unsafe { connection_of(object.as_ptr()) };
    connection.queued.set(false);
    if connection.state.get() != State::Wrapped {
        return Ok(());
    }
    match connection.in_context(|| write_now(object, connection)) {
        Ok(()) => Ok(()),
        Err(raised) => core.unraisable(raised),
    }
}

/// asyncio's end of `_do_read`: the queue, or else what the engine has to say.
#[inline(always)]
pub(super) fn write_pending(object: &Ref, connection: &Connection) -> Result<(), Raised> {
    if connection.queue().is_empty() {
        process_outgoing(object, connection)
    } else {
        write_all(object, connection)
    }
}

/// asyncio's `_do_write`: encrypts the queue, as far as the socket takes it, and sends it.
pub(super) fn write_all(object: &Ref, connection: &Connection) -> Result<(), Raised> {
    let Some(engine) = connection.engine() else { return Ok(()) };
    let mut emptied = false;
    while !connection.queue().is_empty() && !connection.in_engine.get() && !connection.broken.get() {
        // Before the shutdown everything is encrypted, whether it can be sent or not.
        if connection.ssl_writing_paused.get() && connection.state.get() != State::Flushing {
            break;
        }
        let progress = encrypt(connection, engine)?;
        emptied = send_output(connection, engine)?;
        if !progress {
            break;
        }
    }
    if emptied { connection.control_app_writing(object, 0) } else { process_outgoing(object, connection) }
}

/// asyncio's `_process_outgoing`: gives the stream transport what the engine has made.
#[inline(always)]
pub(super) fn process_outgoing(object: &Ref, connection: &Connection) -> Result<(), Raised> {
    let emptied = match connection.engine() {
        Some(engine) => send_output(connection, engine)?,
        None => true,
    };
    connection.control_app_writing(object, if emptied { 0 } else { connection.output_size() })
}

/// Gives the stream transport the ciphertext that waits. True if none is left.
fn send_output(connection: &Connection, engine: &Engine) -> Result<bool, Raised> {
    if connection.ssl_writing_paused.get() || connection.in_engine.get() {
        return Ok(false);
    }
    if engine.output_size() == 0 {
        return Ok(true);
    }
    let transport = connection.transport.get();
    let Some(stream) = transport.as_ref().and_then(|transport| transport.downcast::<Stream>()) else {
        return Ok(false);
    };
    let output = engine.take_output()?;
    match &output {
        Output::Vector(vector) => write_slice(stream, vector)?,
        // SAFETY: a bytes object, which `output` keeps.
        Output::Bytes(bytes) => write_slice(stream, unsafe { bytes_slice(bytes.as_ptr()) })?,
    }
    // A scratch vector goes back to the loop.
    if let (Output::Vector(vector), Some(core)) = (output, connection.core()) {
        core.return_scratch(vector);
    }
    Ok(true)
}

/// Encrypts the next [`BATCH`] bytes of the queue, or all of it if they cannot be sent yet anyway. False if that
/// came to nothing: OpenSSL has to hear from the peer first.
fn encrypt(connection: &Connection, engine: &Engine) -> Result<bool, Raised> {
    let Some(core) = connection.core() else { return Ok(false) };
    if let Engine::Native(native) = engine {
        // The vector leaves with what is in it when that is sent. What cannot be sent now stays in a small one.
        let output = if connection.ssl_writing_paused.get() { Vec::new() } else { core.take_scratch() };
        native.io.exchange_output(output, true);
    }
    connection.in_engine.set(true);
    let outcome = fill(connection, engine, core);
    connection.in_engine.set(false);
    if let Engine::Native(native) = engine {
        native.io.leave();
    }
    connection.broken.set(outcome.is_err());
    outcome
}

fn fill(connection: &Connection, engine: &Engine, core: &Core) -> Result<bool, Raised> {
    // Python may drop what is done with only when the queue is no longer looked at.
    let mut done = Done::default();
    let limit = if connection.ssl_writing_paused.get() { usize::MAX } else { BATCH };
    let mut progress = false;
    while let Some((first, sent)) = connection.queue().front() {
        if progress && engine.output_size() >= limit {
            break;
        }
        match offer(connection, engine, core, &first, sent)? {
            // Not more than is there: an SSLObject with a `write` of its own may end the connection in it.
            Wrote::Bytes(count) => {
                let queue = connection.queue();
                queue.advance(count.min(queue.len()), &mut done);
            }
            Wrote::WantRead => return Ok(false),
        }
        progress = true;
    }
    Ok(progress)
}

/// One write to the engine: the first piece, or small pieces joined to a record.
fn offer(
    connection: &Connection,
    engine: &Engine,
    core: &Core,
    first: &Ref,
    sent: usize,
) -> Result<Wrote, Raised> {
    // SAFETY: a piece is a bytes object, which the caller's reference keeps.
    let rest = &unsafe { bytes_slice(first.as_ptr()) }[sent..];
    let offered = connection.offered.get();
    let wanted = connection.queue().len().min(RECORD).max(offered);
    let (size, wrote) = if rest.len() < wanted {
        let mut joined = core.take_scratch();
        connection.queue().gather(&mut joined, wanted);
        let wrote = match engine {
            Engine::Native(native) => native.encrypt(&joined),
            Engine::Object(object) => bytes_from(&joined).and_then(|data| object.encrypt(&data)),
        };
        let size = joined.len();
        core.return_scratch(joined);
        (size, wrote?)
    } else {
        let size = rest.len().min(BATCH.max(offered));
        let wrote = match engine {
            Engine::Native(native) => native.encrypt(&rest[..size]),
            Engine::Object(object) if sent == 0 && size == rest.len() => object.encrypt(first),
            Engine::Object(object) => bytes_from(&rest[..size]).and_then(|data| object.encrypt(&data)),
        };
        (size, wrote?)
    };
    connection.offered.set(if wrote == Wrote::WantRead { size } else { 0 });
    Ok(wrote)
}

/// [`send_last`] for the protocol of a stream transport that delivers to a TLS connection.
pub(crate) fn send_last_of(connection: &Ref) {
    // SAFETY: the stream transport knows its protocol to be a connection.
    send_last(connection, unsafe { connection_of(connection.as_ptr()) });
}

/// Before the connection is closed by force: sends what asyncio would have sent when it was written. Whatever
/// comes of it, the connection is over.
pub(super) fn send_last(object: &Ref, connection: &Connection) {
    if connection.state.get() == State::Wrapped
        && !connection.queue().is_empty()
        && let Err(raised) = write_all(object, connection)
    {
        drop(raised.take());
    }
}
