//! From the stream transport to the application's protocol.

use super::connection::{Connection, State, call_named, connection_of};
use super::engine::Engine;
use super::native::Native;
use super::object::Message;
use super::records::{End, RECORD, Room, fail};
use crate::capi::buffer::{RawBytes, bytes_from, bytes_slice};
use crate::capi::call::in_kept_context;
use crate::capi::{Raised, Ref};
use crate::event_loop::core::Core;
use crate::transport::base::protocol_sink::Delivery;
use crate::transport::base::sizes::{DIRECT, LARGE};

/// What a receive has become, before any Python code runs.
#[derive(Debug)]
enum Taken {
    /// It was decrypted.
    Batch(Batch),
    /// The engine keeps it; the connection's state says what comes next.
    Kept,
}

#[derive(Debug)]
pub(super) struct Batch {
    plain: Plain,
    end: End,
}

/// Decrypted data.
#[derive(Debug)]
enum Plain {
    /// In a vector of the loop's.
    Scratch(Vec<u8>),
    /// In the `bytes` that the protocol gets: one copy less, of a large message.
    Bytes(Ref),
}

/// Takes what the stream transport has received, in a scratch vector of the loop's, decrypts it and hands it on. Python
/// is called in the context, if there is one.
pub(super) fn receive(
    connection: &Ref,
    core: &Core,
    data: Vec<u8>,
    context: Option<&Ref>,
) -> Result<(), Raised> {
    let taken = take(connection, core, &data);
    core.return_scratch(data);
    let taken = taken?;
    match context {
        Some(context) => in_kept_context(context, || self::taken(connection, taken)),
        None => self::taken(connection, taken),
    }
}

/// Takes what the socket gave: `data` is used up, or copied, when this returns.
#[inline(always)]
fn take(connection: &Ref, core: &Core, data: &[u8]) -> Result<Taken, Raised> {
    // SAFETY: the stream transport calls this with its protocol, which it knows to be a connection.
    let connection = unsafe { connection_of(connection.as_ptr()) };
    match connection.engine() {
        Some(Engine::Native(native))
            if connection.state.get() == State::Wrapped
                && !connection.app_reading_paused.get()
                && !connection.in_engine.get() =>
        {
            native.reads(data.len(), core.counters.turns.get());
            connection.in_engine.set(true);
            let batch = if direct(connection, data.len()) {
                decrypt_direct(native, data)
            } else {
                Ok(decrypt_lent(native, core, data))
            };
            connection.in_engine.set(false);
            batch.map(Taken::Batch)
        }
        // Nobody reads any more.
        Some(_) if connection.state.get() == State::Unwrapped => Ok(Taken::Kept),
        Some(engine) => engine.feed(data).map(|()| Taken::Kept),
        None => Ok(Taken::Kept),
    }
}

/// Does a receive of this size become a `bytes` without a detour? Not if that took a mapping of its own.
#[inline(always)]
fn direct(connection: &Connection, size: usize) -> bool {
    (LARGE..=DIRECT - RECORD).contains(&size) && connection.sink.delivery() == Delivery::Data
}

#[inline(always)]
fn decrypt_lent(native: &Native, core: &Core, data: &[u8]) -> Batch {
    let mut plain = core.take_scratch();
    let end = Room::in_vector(&mut plain, |room| native.decrypt_lent(data, room));
    Batch { plain: Plain::Scratch(plain), end }
}

/// Into a new `bytes`, with room for one record beyond the data: the room of a read is that of a whole record.
#[inline(never)]
fn decrypt_direct(native: &Native, data: &[u8]) -> Result<Batch, Raised> {
    let size = data.len() + RECORD;
    let mut bytes = RawBytes::with_capacity(size)?;
    // SAFETY: the object has room for that many bytes and is seen by nobody else.
    let mut room = Room::new(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), size) });
    let end = native.decrypt_lent(data, &mut room);
    let filled = room.filled();
    // SAFETY: that much of it was filled.
    let bytes = unsafe { bytes.finish(filled) }?;
    Ok(Batch { plain: Plain::Bytes(bytes), end })
}

/// Goes on with what [`take`] has made of a receive. Runs in the connection's context.
#[inline(always)]
fn taken(object: &Ref, taken: Taken) -> Result<(), Raised> {
    // SAFETY: as in `take`.
    let connection = unsafe { connection_of(object.as_ptr()) };
    match taken {
        Taken::Batch(batch) => read(object, connection, Some(batch)),
        Taken::Kept => match connection.state.get() {
            State::Unwrapped => Ok(()),
            State::Handshake => call_named(object, "_do_handshake", &[]),
            State::Wrapped => read(object, connection, None),
            State::Flushing => call_named(object, "_do_flush", &[]),
            State::Shutdown => call_named(object, "_do_shutdown", &[]),
        },
    }
}

/// asyncio's `_do_read`: decrypts and delivers what is there, then sends what waits.
pub(super) fn read(object: &Ref, connection: &Connection, batch: Option<Batch>) -> Result<(), Raised> {
    if !connection.reads() || connection.in_engine.get() {
        return Ok(());
    }
    match read_all(object, connection, batch) {
        Ok(()) => Ok(()),
        Err(raised) => connection.fatal_error(object, raised),
    }
}

#[inline(always)]
fn read_all(object: &Ref, connection: &Connection, mut batch: Option<Batch>) -> Result<(), Raised> {
    let Some(core) = connection.core() else { return Ok(()) };
    if !connection.app_reading_paused.get() {
        let mut more = deliver_rest(object, connection, core)?;
        while more {
            let batch = match batch.take() {
                Some(batch) => batch,
                None => decrypt(connection, core)?,
            };
            more = deliver(object, connection, core, batch)?
                && connection.reads()
                && !connection.app_reading_paused.get();
        }
        super::write::write_pending(object, connection)?;
    } else if connection.state.get() == State::Flushing {
        // asyncio has encrypted all of it when it was written.
        super::write::write_pending(object, connection)?;
    }
    connection.control_ssl_reading(object)
}

fn decrypt(connection: &Connection, core: &Core) -> Result<Batch, Raised> {
    let Some(engine) = connection.engine() else {
        return Ok(Batch { plain: Plain::Scratch(Vec::new()), end: End::Drained });
    };
    connection.in_engine.set(true);
    let batch = decrypt_by(engine, connection, core);
    connection.in_engine.set(false);
    batch
}

fn decrypt_by(engine: &Engine, connection: &Connection, core: &Core) -> Result<Batch, Raised> {
    let message = match engine {
        Engine::Object(object) if connection.sink.delivery() != Delivery::Buffer => object.read_message(),
        _ => None,
    };
    let mut plain = Vec::new();
    match message.transpose()? {
        Some(Message::Whole(data)) => return Ok(Batch { plain: Plain::Bytes(data), end: End::Drained }),
        Some(Message::Nothing(end)) => return Ok(Batch { plain: Plain::Scratch(plain), end }),
        Some(Message::Part(data)) => {
            plain = core.take_scratch();
            // SAFETY: a bytes object, which is held.
            plain.extend_from_slice(unsafe { bytes_slice(data.as_ptr()) });
        }
        None => plain = core.take_scratch(),
    }
    let end = engine.decrypt(&mut plain)?;
    Ok(Batch { plain: Plain::Scratch(plain), end })
}

/// Hands a batch to the protocol. True if there may be more to read.
#[inline(always)]
fn deliver(object: &Ref, connection: &Connection, core: &Core, batch: Batch) -> Result<bool, Raised> {
    let all = match batch.plain {
        Plain::Scratch(plain) => deliver_scratch(object, connection, core, plain)?,
        Plain::Bytes(data) => deliver_bytes(object, connection, core, data)?,
    };
    match batch.end {
        End::Drained => Ok(false),
        End::More => Ok(all),
        // What is not delivered comes first; the engine says it again.
        End::Closed if !all => Ok(false),
        End::Closed => {
            call_named(object, "_call_eof_received", &[])?;
            call_named(object, "_start_shutdown", &[])?;
            Ok(false)
        }
        End::Failed(exception) => Err(fail(exception)),
    }
}

/// Hands plaintext on. False if a buffered protocol has paused before it took all of it.
#[inline(always)]
fn deliver_scratch(
    object: &Ref,
    connection: &Connection,
    core: &Core,
    plain: Vec<u8>,
) -> Result<bool, Raised> {
    if plain.is_empty() {
        core.return_scratch(plain);
    } else if connection.sink.delivery() != Delivery::Buffer {
        let data = unfed(connection, &plain);
        core.return_scratch(plain);
        if let Some(data) = data? {
            delivering(object, core, || connection.sink.data_received(&data))?;
        }
    } else {
        let delivered = deliver_buffered(object, connection, core, &plain);
        let rest = delivered.as_ref().map_or(&[][..], |count| &plain[*count..]);
        let all = rest.is_empty();
        if !all {
            *connection.undelivered() = rest.to_vec();
        }
        core.return_scratch(plain);
        delivered?;
        return Ok(all);
    }
    Ok(true)
}

/// Hands plaintext on that is a `bytes` already.
#[inline(never)]
fn deliver_bytes(object: &Ref, connection: &Connection, core: &Core, data: Ref) -> Result<bool, Raised> {
    // SAFETY: a bytes object, which `data` keeps.
    let plain = unsafe { bytes_slice(data.as_ptr()) };
    if plain.is_empty() {
        return Ok(true);
    }
    if connection.sink.delivery() == Delivery::Buffer {
        // OpenSSL has called back, and the protocol is another now.
        let mut copy = core.take_scratch();
        copy.extend_from_slice(plain);
        return deliver_scratch(object, connection, core, copy);
    }
    if connection.sink.delivery() != Delivery::Reader || !connection.sink.feed(plain)? {
        delivering(object, core, || connection.sink.data_received(&data))?;
    }
    Ok(true)
}

/// Hands on what a buffered protocol did not take before it paused. False if it has not taken all of it now
/// either, or wants no more.
fn deliver_rest(object: &Ref, connection: &Connection, core: &Core) -> Result<bool, Raised> {
    if connection.undelivered().is_empty() {
        return Ok(true);
    }
    let plain = std::mem::take(connection.undelivered());
    let count = deliver_buffered(object, connection, core, &plain)?;
    if count < plain.len() {
        *connection.undelivered() = plain[count..].to_vec();
        return Ok(false);
    }
    Ok(connection.reads() && !connection.app_reading_paused.get())
}

/// Gives data to the protocol's StreamReader natively; what cannot be given that way comes back as bytes.
#[inline(always)]
fn unfed(connection: &Connection, plain: &[u8]) -> Result<Option<Ref>, Raised> {
    if connection.sink.delivery() == Delivery::Reader && connection.sink.feed(plain)? {
        return Ok(None);
    }
    bytes_from(plain).map(Some)
}

/// Fills the buffers of a buffered protocol until all is delivered, or it wants no more for now. Returns how
/// much it took.
fn deliver_buffered(
    object: &Ref,
    connection: &Connection,
    core: &Core,
    plain: &[u8],
) -> Result<usize, Raised> {
    let mut delivered = 0;
    while delivered < plain.len() {
        if delivered > 0 && (connection.app_reading_paused.get() || !connection.reads()) {
            break;
        }
        let rest = &plain[delivered..];
        if connection.sink.delivery() != Delivery::Buffer {
            // It was replaced in between.
            if let Some(data) = unfed(connection, rest)? {
                delivering(object, core, || connection.sink.data_received(&data))?;
            }
            return Ok(plain.len());
        }
        let buffer = connection.sink.get_buffer(rest.len() as isize)?;
        let count = buffer.len().min(rest.len());
        // SAFETY: the view is writable and keeps its memory alive; the plaintext is a vector of ours.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), buffer.as_ptr(), count) };
        drop(buffer);
        delivered += count;
        delivering(object, core, || connection.sink.buffer_updated(count as isize))?;
    }
    Ok(delivered)
}

/// Runs a callback of the protocol; what it writes leaves when it is back.
#[inline(always)]
fn delivering(object: &Ref, core: &Core, call: impl FnOnce() -> Result<(), Raised>) -> Result<(), Raised> {
    let outer = core.begin_delivery(object, super::write::flush);
    let outcome = call();
    core.end_delivery(outer);
    outcome
}
