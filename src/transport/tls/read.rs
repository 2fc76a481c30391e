//! From the stream transport to the application's protocol.

use super::connection::{Connection, State, call_named, control_ssl_reading};
use super::engine::Engine;
use super::native::Native;
use super::object::Message;
use super::records::{End, RECORD, Room};
use super::write::{fail, flush, write_pending};
use crate::capi::buffer::RawBytes;
use crate::capi::call::in_kept_context;
use crate::capi::error::raise;
use crate::capi::{Raised, Ref, This};
use crate::event_loop::core::Core;
use crate::transport::base::protocol_sink::Delivery;
use crate::transport::base::sizes::{DIRECT, LARGE};

/// What was decrypted.
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
    let Some(this) = connection.downcast::<Connection>() else { return Ok(()) };
    let taken = take(this, core, &data);
    core.return_scratch(data);
    let taken = taken?;
    match context {
        Some(context) => in_kept_context(context, || self::taken(this, taken)),
        None => self::taken(this, taken),
    }
}

/// Takes what the socket gave, before any Python code runs: `data` is used up, or copied, when this returns. `None` if the
/// engine keeps it; the connection's state says what comes next.
#[inline(always)]
fn take(this: This<'_, Connection>, core: &Core, data: &[u8]) -> Result<Option<Batch>, Raised> {
    match this.engine() {
        Some(Engine::Native(native))
            if this.state.get() == State::Wrapped && !this.app_paused.reading.get() && !this.in_engine() =>
        {
            native.before_read(data.len(), core.counters.turns.get());
            let batch = this.use_engine(|| match direct(this, data.len()) {
                true => decrypt_direct(native, data),
                false => Ok(decrypt_lent(native, core, data)),
            });
            batch.map(Some)
        }
        // The connection is over: the data is dropped.
        Some(_) if this.state.get() == State::Unwrapped => Ok(None),
        Some(engine) => engine.feed(data).map(|()| None),
        None => Ok(None),
    }
}

/// Does a receive of this size become a `bytes` without a detour? Not if that took a mapping of its own.
#[inline(always)]
fn direct(this: This<'_, Connection>, size: usize) -> bool {
    (LARGE..=DIRECT - RECORD).contains(&size) && this.sink.delivery() == Delivery::Data
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
    // SAFETY: the object has room for that many bytes, and no other code has seen it.
    let memory = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), size) };
    let mut room = Room { memory, filled: 0 };
    let end = native.decrypt_lent(data, &mut room);
    let filled = room.filled;
    // SAFETY: that much of it was filled.
    let bytes = unsafe { bytes.finish(filled) }?;
    Ok(Batch { plain: Plain::Bytes(bytes), end })
}

/// Goes on with what [`take`] has made of a receive. Runs in the connection's context.
#[inline(always)]
fn taken(this: This<'_, Connection>, taken: Option<Batch>) -> Result<(), Raised> {
    if taken.is_some() {
        return read(this, taken);
    }
    match this.state.get() {
        State::Unwrapped => Ok(()),
        State::Handshake => call_named(this, "_do_handshake", &[]),
        State::Wrapped => read(this, None),
        State::Flushing => call_named(this, "_do_flush", &[]),
        State::Shutdown => call_named(this, "_do_shutdown", &[]),
    }
}

/// asyncio's `_do_read`: decrypts and delivers what is there, then sends what waits.
pub(super) fn read(this: This<'_, Connection>, batch: Option<Batch>) -> Result<(), Raised> {
    if !this.reads() || this.in_engine() {
        return Ok(());
    }
    match read_all(this, batch) {
        Ok(()) => Ok(()),
        Err(raised) => fail(this, raised),
    }
}

#[inline(always)]
fn read_all(this: This<'_, Connection>, mut batch: Option<Batch>) -> Result<(), Raised> {
    let Some(core) = this.core() else { return Ok(()) };
    if !this.app_paused.reading.get() {
        let mut more = deliver_rest(this, core)?;
        while more {
            let batch = match batch.take() {
                Some(batch) => batch,
                None => decrypt(this, core)?,
            };
            more = deliver(this, core, batch)? && this.reads() && !this.app_paused.reading.get();
        }
        write_pending(this)?;
    } else if this.state.get() == State::Flushing {
        // asyncio has encrypted all of it when it was written.
        write_pending(this)?;
    }
    control_ssl_reading(this)
}

fn decrypt(this: This<'_, Connection>, core: &Core) -> Result<Batch, Raised> {
    let Some(engine) = this.engine() else {
        return Ok(Batch { plain: Plain::Scratch(Vec::new()), end: End::Drained });
    };
    this.use_engine(|| decrypt_by(engine, this, core))
}

fn decrypt_by(engine: &Engine, this: This<'_, Connection>, core: &Core) -> Result<Batch, Raised> {
    let message = match engine {
        Engine::Object(object) if this.sink.delivery() != Delivery::Buffer => object.read_message(),
        _ => None,
    };
    let mut plain = Vec::new();
    match message.transpose()? {
        Some(Message::Whole(data)) => return Ok(Batch { plain: Plain::Bytes(data), end: End::Drained }),
        Some(Message::Nothing(end)) => return Ok(Batch { plain: Plain::Scratch(plain), end }),
        Some(Message::Part(data)) => {
            plain = core.take_scratch();
            plain.extend_from_slice(data.exact_bytes().unwrap_or_default());
        }
        None => plain = core.take_scratch(),
    }
    let end = engine.decrypt(&mut plain)?;
    Ok(Batch { plain: Plain::Scratch(plain), end })
}

/// Hands a batch to the protocol. True if there may be more to read.
#[inline(always)]
fn deliver(this: This<'_, Connection>, core: &Core, batch: Batch) -> Result<bool, Raised> {
    let plain = match batch.end {
        End::Failed(_) => before_failure(this, batch.plain)?,
        _ => batch.plain,
    };
    let all = match plain {
        Plain::Scratch(plain) => deliver_scratch(this, core, plain)?,
        Plain::Bytes(data) => deliver_bytes(this, core, data)?,
    };
    match batch.end {
        End::Drained => Ok(false),
        End::More => Ok(all),
        // What is not delivered comes first; the engine says it again.
        End::Closed if !all => Ok(false),
        End::Closed => {
            call_named(this, "_call_eof_received", &[])?;
            call_named(this, "_start_shutdown", &[])?;
            Ok(false)
        }
        End::Failed(exception) => Err(raise(exception)),
    }
}

/// What the protocol gets of the data that was read together with a failure: nothing, as asyncio's loop over
/// `SSLObject.read()` raises before it calls the protocol. A buffered protocol gets the buffers that are full, as asyncio
/// calls it after each.
#[cold]
fn before_failure(this: This<'_, Connection>, plain: Plain) -> Result<Plain, Raised> {
    let Plain::Scratch(mut plain) = plain else { return Ok(Plain::Scratch(Vec::new())) };
    let size = match this.sink.delivery() {
        Delivery::Buffer => this.sink.get_buffer(plain.len() as isize)?.len(),
        // No buffer, and none that could be full.
        _ => usize::MAX,
    };
    plain.truncate(plain.len() - plain.len() % size);
    Ok(Plain::Scratch(plain))
}

/// Hands plaintext on. False if a buffered protocol has paused before it took all of it.
#[inline(always)]
fn deliver_scratch(this: This<'_, Connection>, core: &Core, plain: Vec<u8>) -> Result<bool, Raised> {
    if plain.is_empty() {
        core.return_scratch(plain);
    } else if this.sink.delivery() != Delivery::Buffer {
        let data = unfed(this, core, &plain);
        core.return_scratch(plain);
        if let Some(data) = data? {
            delivering(this, core, || this.sink.data_received(&data))?;
            core.bytes_cache.keep(data);
        }
    } else {
        let all = deliver_buffered(this, core, &plain);
        core.return_scratch(plain);
        return all;
    }
    Ok(true)
}

/// Hands plaintext on that is a `bytes` already.
#[inline(never)]
fn deliver_bytes(this: This<'_, Connection>, core: &Core, data: Ref) -> Result<bool, Raised> {
    let plain = data.exact_bytes().unwrap_or_default();
    if plain.is_empty() {
        return Ok(true);
    }
    if this.sink.delivery() == Delivery::Buffer {
        // OpenSSL has called back, and the protocol is another now.
        let mut copy = core.take_scratch();
        copy.extend_from_slice(plain);
        return deliver_scratch(this, core, copy);
    }
    if this.sink.delivery() != Delivery::Reader || !this.sink.feed(core, plain)? {
        delivering(this, core, || this.sink.data_received(&data))?;
    }
    Ok(true)
}

/// Hands on what a buffered protocol did not take before it paused. False if it has not taken all of it now
/// either, or wants no more.
fn deliver_rest(this: This<'_, Connection>, core: &Core) -> Result<bool, Raised> {
    if this.undelivered().is_empty() {
        return Ok(true);
    }
    let plain = std::mem::take(this.undelivered());
    Ok(deliver_buffered(this, core, &plain)? && this.reads() && !this.app_paused.reading.get())
}

/// Gives data to the protocol's StreamReader natively; what cannot be given that way comes back as bytes.
#[inline(always)]
fn unfed(this: This<'_, Connection>, core: &Core, plain: &[u8]) -> Result<Option<Ref>, Raised> {
    if this.sink.delivery() == Delivery::Reader && this.sink.feed(core, plain)? {
        return Ok(None);
    }
    core.bytes_cache.bytes_from(plain).map(Some)
}

/// Fills the buffers of a buffered protocol until all is delivered, or it wants no more for now: then the rest is kept.
/// False if there is a rest.
fn deliver_buffered(this: This<'_, Connection>, core: &Core, plain: &[u8]) -> Result<bool, Raised> {
    let mut delivered = 0;
    while delivered < plain.len() {
        let rest = &plain[delivered..];
        if delivered > 0 && (this.app_paused.reading.get() || !this.reads()) {
            *this.undelivered() = rest.to_vec();
            return Ok(false);
        }
        if this.sink.delivery() != Delivery::Buffer {
            // It was replaced in between.
            if let Some(data) = unfed(this, core, rest)? {
                delivering(this, core, || this.sink.data_received(&data))?;
            }
            break;
        }
        let buffer = this.sink.get_buffer(rest.len() as isize)?;
        let (full, count) = (buffer.len() <= rest.len(), buffer.len().min(rest.len()));
        // SAFETY: the view is writable and keeps its memory alive; the plaintext is a vector of ours.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), buffer.as_ptr(), count) };
        drop(buffer);
        delivered += count;
        if let Err(raised) = delivering(this, core, || this.sink.buffer_updated(count as isize)) {
            return Err(if full { keep_rest(this, &plain[delivered..], raised) } else { raised });
        }
    }
    Ok(true)
}

/// The protocol has failed with a full buffer. asyncio has scheduled the next read by then, which comes before
/// `connection_lost()`. Returns the failure.
#[cold]
fn keep_rest(this: This<'_, Connection>, rest: &[u8], failure: Raised) -> Raised {
    let exception = failure.take();
    *this.undelivered() = rest.to_vec();
    match call_named(this, "_read_later", &[]) {
        Ok(()) => raise(exception),
        Err(raised) => raised,
    }
}

/// Runs a callback of the protocol; what it writes leaves when it is back.
#[inline(always)]
fn delivering(
    this: This<'_, Connection>,
    core: &Core,
    call: impl FnOnce() -> Result<(), Raised>,
) -> Result<(), Raised> {
    let outer = core.begin_delivery(&this.object(), flush);
    let outcome = call();
    core.end_delivery(outer);
    outcome
}
