//! Decrypts what the stream transport has received, and delivers it to the application's protocol.

use std::collections::VecDeque;

use super::connection::{Connection, TlsState, call_named, control_ssl_reading};
use super::engine::Engine;
use super::native::Native;
use super::object::Message;
use super::records::{End, RECORD, Room};
use super::write::{fail, write_pending};
use crate::capi::buffer::{Buffer, RawBytes};
use crate::capi::call::in_kept_context;
use crate::capi::error::raise;
use crate::capi::{Exception, Raised, Ref, This};
use crate::kernel::core::Core;
use crate::kernel::observe::recording;
use crate::transport::base::protocol_sink::Delivery;
use crate::transport::base::sizes::{DIRECT, LARGE};

/// Decrypted data, and how the reads ended.
#[derive(Debug)]
pub(super) struct Batch {
    plain: Plain,
    end: End,
}

/// Decrypted data.
#[derive(Debug)]
enum Plain {
    /// In a scratch vector of the loop.
    Scratch(Vec<u8>),
    /// In the `bytes` that the protocol gets. This saves a copy.
    Bytes(Ref),
}

/// Decrypts what the stream transport has received (`data`, in a scratch vector of the loop), and delivers it. Python
/// code is called in `context`, if there is one.
pub(super) fn receive(
    connection: &Ref,
    core: &Core,
    data: Vec<u8>,
    context: Option<&Ref>,
) -> Result<(), Raised> {
    connection.with_native(|this| receive_by(this, core, data, context)).unwrap_or(Ok(()))
}

fn receive_by(
    this: This<'_, Connection>,
    core: &Core,
    data: Vec<u8>,
    context: Option<&Ref>,
) -> Result<(), Raised> {
    if !this.core().is_some_and(|own| std::ptr::eq(own, core)) {
        return Err(Exception::RuntimeError.raise("the TLS connection belongs to another event loop"));
    }
    let taken = take(this, core, &data);
    core.scratch.give_back(data);
    let taken = taken?;
    match context {
        Some(context) => in_kept_context(context, || process(this, taken)),
        None => process(this, taken),
    }
}

/// Decrypts or stores `data`, before any Python code runs. It is not needed after this returns. The result is `None` if
/// nothing was decrypted; the connection's state then decides what happens next.
#[inline(always)]
fn take(this: This<'_, Connection>, core: &Core, data: &[u8]) -> Result<Option<Batch>, Raised> {
    match this.engine() {
        Some(Engine::Native(native))
            if this.state.get() == TlsState::Wrapped
                && !this.app_paused.reading.get()
                && !this.in_engine()
                && this.undelivered.borrow().is_empty() =>
        {
            native.before_read(data.len(), core.turn_number());
            let batch = this.use_engine(|| match direct(this, data.len()) {
                true => decrypt_direct(native, data),
                false => Ok(decrypt_lent(native, core, data)),
            });
            batch.map(Some)
        }
        // The connection is closed, so the data is dropped.
        Some(_) if this.state.get() == TlsState::Unwrapped => Ok(None),
        Some(engine) => engine.feed(data).map(|()| None),
        None => Ok(None),
    }
}

/// Is a receive of this size decrypted directly into a `bytes`? Not if the object would be so large that malloc uses
/// mmap.
#[inline(always)]
fn direct(this: This<'_, Connection>, size: usize) -> bool {
    (LARGE..=DIRECT - RECORD).contains(&size) && this.sink.delivery() == Delivery::Data
}

#[inline(always)]
fn decrypt_lent(native: &Native, core: &Core, data: &[u8]) -> Batch {
    let mut plain = core.scratch.take();
    let end = Room::in_vector(&mut plain, |room| native.decrypt_lent(data, room));
    Batch { plain: Plain::Scratch(plain), end }
}

/// Decrypts into a new `bytes`. It has room for one more record than the data, because each read needs room for a whole
/// record.
#[inline(never)]
fn decrypt_direct(native: &Native, data: &[u8]) -> Result<Batch, Raised> {
    let size = data.len() + RECORD;
    let mut bytes = RawBytes::with_capacity(size)?;
    // SAFETY: the object has room for `size` bytes, and no other code has a reference to it.
    let memory = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), size) };
    let mut room = Room { memory, filled: 0 };
    let end = native.decrypt_lent(data, &mut room);
    let filled = room.filled;
    // SAFETY: the first `filled` bytes were written.
    let bytes = unsafe { bytes.finish(filled) }?;
    Ok(Batch { plain: Plain::Bytes(bytes), end })
}

/// Continues after [`take`]. Runs in the connection's context.
#[inline(always)]
fn process(this: This<'_, Connection>, taken: Option<Batch>) -> Result<(), Raised> {
    if taken.is_some() {
        return read(this, taken);
    }
    match this.state.get() {
        TlsState::Unwrapped => Ok(()),
        TlsState::Handshake => call_named(this, "_do_handshake", &[]),
        TlsState::Wrapped => read(this, None),
        TlsState::Flushing => call_named(this, "_do_flush", &[]),
        TlsState::Shutdown => call_named(this, "_do_shutdown", &[]),
    }
}

/// asyncio's `_do_read`: decrypts and delivers all data that is there, and then sends pending data.
pub(super) fn read(this: This<'_, Connection>, batch: Option<Batch>) -> Result<(), Raised> {
    if !this.may_read() || this.in_engine() {
        return Ok(());
    }
    read_all(this, batch).or_else(|raised| fail(this, raised))
}

#[inline(always)]
fn read_all(this: This<'_, Connection>, mut batch: Option<Batch>) -> Result<(), Raised> {
    let Some(core) = this.core() else { return Ok(()) };
    if !this.app_paused.reading.get() {
        let mut more = deliver_rest(this, core)?;
        if more && let Some(exception) = this.failure.take() {
            return Err(raise(exception));
        }
        while more {
            let batch = match batch.take() {
                Some(batch) => batch,
                None => decrypt(this, core)?,
            };
            more = deliver(this, core, batch)? && this.may_read() && !this.app_paused.reading.get();
        }
        write_pending(this)?;
    } else if this.state.get() == TlsState::Flushing {
        // asyncio has encrypted this data when it was written, so it has to be sent before the shutdown.
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
            plain = core.scratch.take();
            plain.extend_from_slice(data.exact_bytes().unwrap_or_default());
        }
        None => plain = core.scratch.take(),
    }
    let end = engine.decrypt(&mut plain)?;
    Ok(Batch { plain: Plain::Scratch(plain), end })
}

/// Delivers a batch to the protocol. True if there may be more to read.
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
        // The rest has to be delivered first. The next read will report the end again.
        End::Closed if !all => Ok(false),
        End::Closed => {
            call_named(this, "_call_eof_received", &[])?;
            call_named(this, "_start_shutdown", &[])?;
            Ok(false)
        }
        End::Failed(exception) if !all => {
            this.failure.set(Some(exception));
            Ok(false)
        }
        End::Failed(exception) => Err(raise(exception)),
    }
}

/// The part of the data that is delivered if a later read has failed. Usually nothing: asyncio reads in a loop, which
/// raises before the protocol is called. But asyncio calls a buffered protocol after each full buffer, so it gets the
/// full buffers.
#[cold]
fn before_failure(this: This<'_, Connection>, plain: Plain) -> Result<Plain, Raised> {
    let Plain::Scratch(mut plain) = plain else { return Ok(Plain::Scratch(Vec::new())) };
    let size = match this.sink.delivery() {
        Delivery::Buffer => get_buffer(this, plain.len())?.len(),
        // Other protocols have no buffer that could be full.
        _ => usize::MAX,
    };
    plain.truncate(plain.len() - plain.len() % size);
    Ok(Plain::Scratch(plain))
}

/// Calls `protocol.get_buffer(hint)`.
fn get_buffer(this: This<'_, Connection>, hint: usize) -> Result<Buffer, Raised> {
    this.sink.get_buffer(hint as isize, "read() argument 2")?.map_err(raise)
}

/// Delivers plaintext. False if it has filled the buffer of a buffered protocol.
#[inline(always)]
fn deliver_scratch(this: This<'_, Connection>, core: &Core, plain: Vec<u8>) -> Result<bool, Raised> {
    if plain.is_empty() {
        core.scratch.give_back(plain);
    } else if this.sink.delivery() != Delivery::Buffer {
        let data = feed_or_copy(this, core, &plain);
        core.scratch.give_back(plain);
        if let Some(data) = data? {
            delivering(this, core, || this.sink.data_received(&data))?;
            core.bytes_cache.keep(data);
        }
    } else {
        let all = deliver_buffered(this, core, &plain);
        core.scratch.give_back(plain);
        return all;
    }
    Ok(true)
}

/// Delivers plaintext that is a `bytes` already.
#[inline(never)]
fn deliver_bytes(this: This<'_, Connection>, core: &Core, data: Ref) -> Result<bool, Raised> {
    let plain = data.exact_bytes().unwrap_or_default();
    if plain.is_empty() {
        return Ok(true);
    }
    if this.sink.delivery() == Delivery::Buffer {
        // OpenSSL has called Python code, which has replaced the protocol.
        let mut copy = core.scratch.take();
        copy.extend_from_slice(plain);
        return deliver_scratch(this, core, copy);
    }
    if this.sink.delivery() != Delivery::Reader || !this.sink.feed(core, plain)? {
        delivering(this, core, || this.sink.data_received(&data))?;
    }
    Ok(true)
}

/// Delivers the rest that a buffered protocol did not get because its buffer was full. False if there may be still a
/// rest, or if nothing more may be delivered.
fn deliver_rest(this: This<'_, Connection>, core: &Core) -> Result<bool, Raised> {
    if this.undelivered.borrow().is_empty() {
        return Ok(true);
    }
    Ok(deliver_buffered(this, core, &[])? && this.may_read() && !this.app_paused.reading.get())
}

/// Feeds data to the protocol's StreamReader natively. If that is not possible, returns the data as `bytes`.
#[inline(always)]
fn feed_or_copy(this: This<'_, Connection>, core: &Core, plain: &[u8]) -> Result<Option<Ref>, Raised> {
    if this.sink.delivery() == Delivery::Reader && this.sink.feed(core, plain)? {
        return Ok(None);
    }
    core.bytes_cache.bytes_from(plain).map(Some)
}

/// Fills one buffer of a buffered protocol, with new data, or without any with the rest of earlier data. If the buffer
/// is full, the next read is scheduled before the protocol is called, as in asyncio, and this is false.
fn deliver_buffered(this: This<'_, Connection>, core: &Core, new: &[u8]) -> Result<bool, Raised> {
    if this.sink.delivery() != Delivery::Buffer {
        // The protocol was replaced in the meantime.
        let rest = Vec::from(this.undelivered.take());
        if let Some(data) = feed_or_copy(this, core, &rest)? {
            delivering(this, core, || this.sink.data_received(&data))?;
        }
        return Ok(true);
    }
    let buffer = get_buffer(this, if new.is_empty() { this.undelivered.borrow().len() } else { new.len() })?;
    let mut rest = this.undelivered.borrow_mut();
    let plain: &[u8] = if new.is_empty() { rest.make_contiguous() } else { new };
    let (full, count) = (buffer.len() <= plain.len(), buffer.len().min(plain.len()));
    // SAFETY: the view is writable and keeps its memory alive, and the plaintext is in memory of ours.
    unsafe { std::ptr::copy_nonoverlapping(plain.as_ptr(), buffer.as_ptr(), count) };
    if new.is_empty() {
        rest.drain(..count);
    } else {
        rest.extend(&new[count..]);
    }
    if rest.is_empty() {
        *rest = VecDeque::new();
    }
    drop((rest, buffer));
    if full {
        call_named(this, "_read_later", &[])?;
    }
    delivering(this, core, || this.sink.buffer_updated(count as isize))?;
    Ok(!full)
}

/// Runs a callback of the protocol.
#[inline(always)]
fn delivering(
    this: This<'_, Connection>,
    core: &Core,
    call: impl FnOnce() -> Result<(), Raised>,
) -> Result<(), Raised> {
    if core.probe.recorder.is_on()
        && let Some(method) = this.sink.method()
    {
        recording::call(core, &method);
    }
    call()
}
