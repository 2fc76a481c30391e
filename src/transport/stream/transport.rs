//! The stream transport: one TCP or Unix connection.
//!
//! The path of a byte: the poller reports the descriptor ([`Source::on_ready`] here), [`receive`] takes the data and calls
//! the protocol, the protocol writes by way of [`methods`](super::methods) and [`send`], and what it has written is sent
//! here when it returns.
//!
//! One receive per event: a short read means that the socket is drained, unless the event also carried a close or an
//! error, which must be read too, or urgent data, at whose mark a read ends. After [`READS`] full reads the transport
//! queues itself for the next turn.
//!
//! The descriptor is never deregistered by hand: closing it does that, and an event that was already under way carries a
//! dead token.

use std::ffi::CStr;
use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::receive::{Received, receive};
use super::state::{Gate, Stream};
use super::{clients, send, send_file};
use crate::capi::imports::imports;
use crate::capi::methods::Attribute;
use crate::capi::{Fatal, Raised, Ref, This};
use crate::event_loop::core::Core;
use crate::event_loop::source::Source;
use crate::reactor::Readiness;
use crate::transport::base::closing::{close, fatal_error};
use crate::transport::base::events::acting;
use crate::transport::base::protocol_sink::Delivery;
use crate::transport::base::reporting::log_in_debug;
use crate::transport::base::sizes::READS;
use crate::transport::base::transport::TransportKind;

/// Is there a reason to read: data, or some end that a read will report?
#[inline(always)]
fn has_arrived(readiness: Readiness) -> bool {
    let ended = Readiness::READ_CLOSED | Readiness::WRITE_CLOSED | Readiness::ERROR;
    readiness.intersects(Readiness::READABLE | ended)
}

impl TransportKind for Stream {
    const NAME: &'static CStr = c"wakeloop._core.StreamTransport";
    const BASES: &'static [&'static str] = &["_FlowControlMixin"];
    const DESCRIPTOR: &'static CStr = c"_sock_fd";
    const OWNER: &'static CStr = c"_sock";
    const EDGE_TRIGGERED: bool = true;
    const OWNS_DESCRIPTOR: bool = true;
    const NEEDS_OPEN_LOOP: bool = true;

    fn set_protocol(&self, protocol: Ref) -> Result<(), Raised> {
        self.sink.set(protocol)
    }

    fn forget_protocol(&self) {
        self.sink.clear();
    }

    #[inline(always)]
    fn descriptor(&self) -> RawFd {
        Stream::descriptor(self)
    }

    fn enter(this: This<'_, Self>) -> Result<(), Raised> {
        clients::enter(this)
    }

    fn leave(this: This<'_, Self>) -> Result<(), Raised> {
        clients::leave(this)
    }

    fn started(this: This<'_, Self>, core: &Core, held: bool) {
        if held {
            // There is news in this very turn. The task that waits may have to say first where the data goes: its step comes
            // before the news, and the news before what that step schedules.
            core.note_io();
            core.call_native(this.object().to_owned(), open_gate);
        } else {
            this.reading.gate.set(Gate::Open);
            if let Some(news) = kept_news(this) {
                core.requeue(this.base.token.get(), news);
            }
        }
    }

    #[inline(always)]
    fn lost(this: This<'_, Self>, core: &Core, exception: &Ref) -> Result<(), Fatal> {
        // A file is sent only while there is such a future.
        if this.writing.empty_waiter.is_empty() { Ok(()) } else { send_file::lost(this, core, exception) }
    }

    fn remember(this: This<'_, Self>) {
        this.remember_addresses(this.py());
    }

    fn reading_paused(this: This<'_, Self>) {
        this.settle();
    }

    /// Reads again from the next turn on, as asyncio does: what this turn's poll reported is for then. An end that was
    /// reported already is reported again, to the protocol of then: TLS that starts on a connection whose peer is gone fails
    /// at once.
    fn reading_resumed(this: This<'_, Self>, core: &Core) {
        this.base.life.reopen();
        this.settle();
        if this.reading.gate.get() != Gate::Starting {
            // What arrived meanwhile made its edge already: look without one.
            this.read_next_turn(core, Readiness::READABLE | Readiness::READ_CLOSED);
            core.wake_if_parked();
        }
    }

    fn send_gathered(this: This<'_, Self>) -> Result<(), Raised> {
        send::send_gathered(this)
    }

    fn send_last(this: This<'_, Self>) {
        send::send_last(this);
    }

    fn send_from_above(&self) {
        self.sink.send_last();
    }

    #[inline(always)]
    fn unsent(&self) -> usize {
        self.writing.buffer.len()
    }

    #[inline(always)]
    fn drop_unsent(&self) {
        if !self.writing.is_empty() {
            drop(self.writing.buffer.take());
        }
    }

    fn owner_attribute() -> Attribute<Self> {
        Attribute::read_only(Self::OWNER, |this: This<'_, Stream>| -> Result<Option<Ref>, Raised> {
            Ok(this.python_socket(this.py())?)
        })
    }

    fn is_released(&self) -> bool {
        self.base.fd.get() < 0
    }

    fn extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.known_extra_info(py, name)
    }

    fn all_extra(&self, py: Python<'_>) -> PyResult<Option<Ref>> {
        Ok(Some(Ref::from(self.full_extra(py)?.into_any())))
    }

    fn describe(&self, text: &mut String) {
        if self.base.core().is_closed() {
            // Nobody polls for it any more.
            return;
        }
        let watched = self.base.is_watched() || !self.base.life.is_starting();
        let read = if self.base.awaits_data() && watched { "polling" } else { "idle" };
        let size = self.unsent();
        let awaits_room = self.writing.blocked.get() && (size > 0 || self.writing.is_sending());
        let write = if awaits_room { "polling" } else { "idle" };
        text.push_str(&format!(" read={read} write=<{write}, bufsize={size}>"));
    }
}

/// The step behind that of the task that has waited for the transport.
fn open_gate(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<Stream>() else { return Ok(()) };
    this.reading.gate.set(Gate::Open);
    if this.base.is_reading() && this.base.has_just_resumed(core) {
        Stream::reading_resumed(this, core);
        return Ok(());
    }
    kept_news(this).map_or(Ok(()), |news| ready(this, core, news))
}

/// News of a transport that does not act on it yet, or does from now on.
#[cold]
fn not_open(this: This<'_, Stream>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    let readiness = this.base.kept.get() | readiness;
    if this.reading.gate.get() == Gate::Starting || this.base.has_just_resumed(core) {
        this.base.kept.set(readiness);
        return Ok(());
    }
    this.base.kept.set(Readiness::EMPTY);
    this.reading.gate.set(Gate::Open);
    ready(this, core, readiness)
}

/// Takes the news that was kept, if it is any to this transport.
fn kept_news(this: This<'_, Stream>) -> Option<Readiness> {
    let kept = this.base.kept.replace(Readiness::EMPTY);
    let is_news = has_arrived(kept) || (this.writing.blocked.get() && !kept.is_empty());
    (is_news && !this.base.life.is_lost()).then_some(kept)
}

impl Source for Stream {
    fn has_descriptor(object: &Ref) -> bool {
        object.downcast::<Stream>().is_some_and(|this| this.descriptor() == this.base.fd.get())
    }

    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        let Some(this) = object.downcast::<Stream>() else { return Ok(()) };
        if this.reading.gate.get() == Gate::Open {
            ready(this, core, readiness)
        } else {
            not_open(this, core, readiness)
        }
    }
}

/// Acts on readiness.
#[inline(always)]
fn ready(this: This<'_, Stream>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    // A write that the socket refused since the poll waits for another edge.
    let writes = this.writing.blocked.get()
        && readiness.intersects(Readiness::WRITABLE | Readiness::WRITE_CLOSED | Readiness::ERROR)
        && this.writing.blocked_at.get() != core.counters.polls.get();
    // Reading comes first: what the peer said before it closed must not be lost to the error of a write.
    if has_arrived(readiness) {
        if this.base.acting.get() {
            // One message after the other, whatever the protocol does with the first.
            this.base.kept.set(this.base.kept.get() | readiness);
        } else {
            read(this, core, readiness)?;
        }
    }
    if writes && this.writing.blocked.get() && !this.base.life.is_lost() {
        return if this.writing.is_sending() {
            send_file::resume(this, core)
        } else {
            send::flush_now(this, core)
        };
    }
    Ok(())
}

/// Reads what there is, and looks after what was reported meanwhile.
#[inline(always)]
fn read(this: This<'_, Stream>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    let done = acting(this, || read_all(this, core, readiness));
    let kept = this.base.kept.get();
    if kept.is_empty() && done.is_ok() {
        return Ok(());
    }
    look_again(this, core, readiness, done)
}

#[cold]
fn look_again(
    this: This<'_, Stream>,
    core: &Core,
    readiness: Readiness,
    done: Result<(), Fatal>,
) -> Result<(), Fatal> {
    let mut again = this.base.kept.replace(Readiness::EMPTY);
    if done.is_err() {
        // The edge is spent; the rest of what it reported is for the next run.
        again |= readiness;
    }
    core.requeue(this.base.token.get(), again);
    done
}

#[inline(always)]
fn read_all(this: This<'_, Stream>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    let goes_on = readiness.intersects(Readiness::BEHIND_SHORT_READ);
    for _ in 0..READS {
        if !this.base.awaits_data() {
            return Ok(());
        }
        let full = match receive(this, core) {
            Received::Data { full, data } => {
                if !this.writing.is_empty() && !this.writing.blocked.get() {
                    send::flush_now(this, core)?;
                }
                if let Some(data) = data {
                    core.bytes_cache.keep(data);
                }
                full
            }
            Received::Stored { full } => full,
            Received::Empty | Received::Gone => return Ok(()),
            Received::Eof => return ended_by_peer(this, core),
            Received::Failed(raised, message) => return fatal_error(this, raised, message),
        };
        if full && this.sink.delivery() == Delivery::Reader {
            // A reader only grows.
            continue;
        }
        if !full && !goes_on {
            return Ok(());
        }
        // What the data made the protocol schedule comes before more of it and before the end of the stream, as in asyncio:
        // a task may have to change the protocol.
        if !core.ready.is_empty() {
            this.read_next_turn(core, readiness);
            return Ok(());
        }
    }
    if this.base.is_reading() {
        core.requeue(this.base.token.get(), readiness | Readiness::READABLE);
    }
    Ok(())
}

/// The peer has closed its side: the protocol decides whether ours stays open.
fn ended_by_peer(this: This<'_, Stream>, _core: &Core) -> Result<(), Fatal> {
    let Some(protocol) = this.sink.protocol.get() else { return Ok(()) };
    log_in_debug(this, "received_eof")?;
    let answer = protocol
        .getattr(&imports().eof_received)
        .and_then(|eof_received| this.base.in_context(|| eof_received.call(&[])))
        .and_then(|answer| answer.is_true());
    match answer {
        Ok(true) => {
            this.base.life.half_close();
            this.settle();
            Ok(())
        }
        Ok(false) => close(this),
        Err(raised) => fatal_error(this, raised, "Fatal error: protocol.eof_received() call failed."),
    }
}
