//! The stream transport: one TCP or Unix connection.
//!
//! The path of a byte: the poller reports the descriptor ([`Source::on_ready`] here). [`receive`] receives the data and
//! calls the protocol. The protocol writes by [`methods`](super::methods) and [`send`]. When it returns, [`read_all`]
//! sends what it has written.
//!
//! Usually there is one receive per event, because a short read means that the socket is drained. There are more if the
//! event also reports a close or an error, which must be read too, or urgent data, because a read ends at the urgent
//! mark. And there are more inside a long message, of which more has come while the protocol had the last part: a
//! receive that finds nothing costs less than a turn of the loop. After [`READS`] reads the transport requeues itself for
//! the next turn.
//!
//! The descriptor is never deregistered: closing it removes it from the poller. An event that was reported before that
//! has an outdated token.

use std::ffi::CStr;
use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::receive::{Received, receive};
use super::state::{Expected, Gate, Stream};
use super::{clients, send, send_file};
use crate::capi::imports::imports;
use crate::capi::methods::Attribute;
use crate::capi::{Fatal, Raised, Ref, This};
use crate::compat::transports::Replaced;
use crate::kernel::core::Core;
use crate::kernel::source::{Source, SourceKind, Status};
use crate::reactor::Readiness;
use crate::transport::base::closing::{close, fatal_error};
use crate::transport::base::events::while_handling;
use crate::transport::base::protocol_sink::Delivery;
use crate::transport::base::reporting::log_in_debug;
use crate::transport::base::sizes::READS;
use crate::transport::base::transport::{TransportKind, status};

/// Is there a reason to read: data, or an end or error that a read will report?
#[inline(always)]
fn has_arrived(readiness: Readiness) -> bool {
    let ended = Readiness::READ_CLOSED | Readiness::WRITE_CLOSED | Readiness::ERROR;
    readiness.intersects(Readiness::READABLE | ended)
}

impl TransportKind for Stream {
    const NAME: &'static CStr = c"wakeloop._core.StreamTransport";
    const DOC: &'static CStr = c"The transport of a stream socket: TCP, Unix or a connected pair.

For use in the thread of its loop, as asyncio's transports. Data that does not fit into the socket is kept, and the
protocol's pause_writing() is called above the high-water mark.";
    const REPLACES: Replaced = Replaced::Socket;
    const BASES: &'static [&'static str] = &["_FlowControlMixin"];
    const DESCRIPTOR: &'static CStr = c"_sock_fd";
    const OWNER: &'static CStr = c"_sock";
    const EDGE_TRIGGERED: bool = true;
    const OWNS_DESCRIPTOR: bool = true;

    fn set_protocol(&self, protocol: Ref) -> Result<(), Raised> {
        self.await_bytes(0);
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
            // The waiting task is in the ready queue, and may have to set another protocol before data is delivered. So
            // events are handled after this task's step, but before the callbacks that the step schedules.
            core.note_io();
            core.call_native(this.object().to_owned(), open_gate);
        } else {
            this.reading.gate.set(Gate::Open);
            if let Some(readiness) = take_pending(this) {
                core.requeue(this.base.token.get(), readiness);
            }
        }
    }

    #[inline(always)]
    fn lost(this: This<'_, Self>, core: &Core, exception: &Ref) -> Result<(), Fatal> {
        this.writing.habit.end();
        // Without this future, no file is being sent.
        if this.writing.empty_waiter.is_empty() { Ok(()) } else { send_file::lost(this, core, exception) }
    }

    fn remember(this: This<'_, Self>) {
        // The program may have a duplicate of the socket.
        this.await_bytes(0);
        this.remember_addresses(this.py());
    }

    fn reading_paused(this: This<'_, Self>) {
        this.update_ownership();
    }

    /// As in asyncio, reads from the next turn on, also what this turn's poll has reported. An end of file that was
    /// reported before is reported again, to the current protocol: `start_tls` on a connection whose peer is gone then
    /// fails at once.
    fn reading_resumed(this: This<'_, Self>, core: &Core) {
        this.base.life.reopen();
        this.update_ownership();
        if this.reading.gate.get() != Gate::Starting {
            // The edge of data that has arrived in the meantime was reported before. So the read does not wait for an
            // edge.
            this.reading.is_unsure.set(true);
            this.read_next_turn(core, Readiness::READABLE | Readiness::READ_CLOSED);
            core.wake_if_parked();
        }
    }

    fn send_gathered(this: This<'_, Self>) -> Result<(), Raised> {
        send::send_gathered(this)
    }

    #[inline(always)]
    fn send_for_drain(this: This<'_, Self>) -> Result<(), Raised> {
        if this.base.core().writes.queue.is_empty() {
            return Ok(());
        }
        match this.sink.delivery() {
            Delivery::Reader => send::send_gathered(this),
            Delivery::Native => {
                this.sink.drain();
                Ok(())
            }
            Delivery::Data | Delivery::Buffer => Ok(()),
        }
    }

    fn send_last(this: This<'_, Self>) {
        send::send_last(this);
    }

    fn send_tls_writes(&self) {
        self.sink.send_last();
    }

    #[inline(always)]
    fn unsent(&self) -> usize {
        self.writing.buffer.len()
    }

    fn source_kind(&self) -> SourceKind {
        match self.reading.family {
            _ if self.sink.delivery() == Delivery::Native => SourceKind::Tls,
            libc::AF_UNIX => SourceKind::Unix,
            _ => SourceKind::Tcp,
        }
    }

    fn unsent_of_protocol(&self) -> usize {
        self.sink.unsent()
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
        .doc(c"The socket.socket of the connection, made when it is first asked for; None once closed.")
    }

    fn is_released(&self) -> bool {
        self.base.fd.get() < 0
    }

    fn extra_info<'py>(
        this: This<'_, Self>,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        this.known_extra_info(py, name)
    }

    fn all_extra(this: This<'_, Self>, py: Python<'_>) -> PyResult<Option<Ref>> {
        Ok(Some(Ref::from(this.full_extra(py)?.into_any())))
    }

    fn describe(&self, text: &mut String) {
        if self.base.core().is_closed() {
            // A closed loop polls no more.
            return;
        }
        // As in asyncio, the descriptor is watched only after connection_made.
        let read = if self.base.awaits_data() && !self.base.life.is_starting() { "polling" } else { "idle" };
        // What waits for the next write was sent already in asyncio.
        let size = if self.writing.blocked.get() { self.unsent() } else { 0 };
        let awaits_room = self.writing.blocked.get() && (size > 0 || self.writing.is_sending());
        let write = if awaits_room { "polling" } else { "idle" };
        text.push_str(&format!(" read={read} write=<{write}, bufsize={size}>"));
    }
}

/// Opens the gate. Queued after the step of the task that waits for the transport.
fn open_gate(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<Stream>() else { return Ok(()) };
    this.reading.gate.set(Gate::Open);
    if this.base.is_reading() && this.base.has_just_resumed(core) {
        Stream::reading_resumed(this, core);
        return Ok(());
    }
    take_pending(this).map_or(Ok(()), |readiness| ready(this, core, readiness))
}

/// Handles an event while the gate is not open: keeps it for later, or opens the gate.
#[cold]
fn on_ready_before_open(this: This<'_, Stream>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    let readiness = this.base.pending_readiness.get() | readiness;
    if this.reading.gate.get() == Gate::Starting || this.base.has_just_resumed(core) {
        this.base.pending_readiness.set(readiness);
        return Ok(());
    }
    this.base.pending_readiness.set(Readiness::EMPTY);
    this.reading.gate.set(Gate::Open);
    ready(this, core, readiness)
}

/// Takes the readiness that was pending, if it is still relevant.
fn take_pending(this: This<'_, Stream>) -> Option<Readiness> {
    let pending = this.base.pending_readiness.replace(Readiness::EMPTY);
    let is_relevant = has_arrived(pending) || (this.writing.blocked.get() && !pending.is_empty());
    (is_relevant && !this.base.life.is_lost()).then_some(pending)
}

impl Source for Stream {
    fn status(object: &Ref) -> Status {
        object.downcast::<Stream>().map_or_else(Status::default, status)
    }

    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        let Some(this) = object.downcast::<Stream>() else { return Ok(()) };
        if this.reading.gate.get() == Gate::Open {
            ready(this, core, readiness)
        } else {
            on_ready_before_open(this, core, readiness)
        }
    }
}

/// Handles an event.
#[inline(always)]
fn ready(this: This<'_, Stream>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    // If the socket was full after the poll, the event is older than that, and another edge will come.
    let writes = this.writing.blocked.get()
        && readiness.intersects(Readiness::WRITABLE | Readiness::WRITE_CLOSED | Readiness::ERROR)
        && this.writing.blocked_at.get() != core.poll_number();
    // Reading comes first: data that the peer has sent before it closed must be delivered before a write fails.
    if has_arrived(readiness) {
        if this.base.handling.get() {
            // The protocol has run the loop inside of a callback. The next message waits until that callback returns.
            this.base.pending_readiness.set(this.base.pending_readiness.get() | readiness);
        } else {
            read(this, core, readiness)?;
        }
    }
    if writes && this.writing.blocked.get() && !this.base.life.is_lost() {
        return if this.writing.is_sending() {
            send_file::resume(this, core)
        } else {
            send::flush_blocked(this, core)
        };
    }
    Ok(())
}

/// Reads, and requeues the readiness that was reported in the meantime.
#[inline(always)]
fn read(this: This<'_, Stream>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    let done = while_handling(this, || read_all(this, core, readiness));
    let pending = this.base.pending_readiness.get();
    if pending.is_empty() && done.is_ok() {
        return Ok(());
    }
    requeue_pending(this, core, readiness, done)
}

#[cold]
fn requeue_pending(
    this: This<'_, Stream>,
    core: &Core,
    readiness: Readiness,
    done: Result<(), Fatal>,
) -> Result<(), Fatal> {
    let mut again = this.base.pending_readiness.replace(Readiness::EMPTY);
    if done.is_err() {
        // There will be no further edge for unread data, so it is read in the next run of the loop.
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
            Received::Empty => {
                if this.reading.expected.get() == Expected::Long {
                    core.spins.leave_out_next();
                }
                return Ok(());
            }
            Received::Gone => return Ok(()),
            Received::Eof => return ended_by_peer(this, core),
            Received::Failed(raised, message) => return fatal_error(this, raised, message),
        };
        if full || goes_on {
            this.reading.is_unsure.set(true);
        }
        if full && !this.has_no_own_attributes() {
            // As in asyncio, each iteration reads once, as much as the program has set as `max_size`.
            this.read_next_turn(core, readiness);
            return Ok(());
        }
        if full && this.sink.delivery() == Delivery::Reader {
            // A StreamReader only stores the data, so the next read may follow at once.
            continue;
        }
        let drained = !full && !goes_on;
        if drained && this.reading.expected.get() != Expected::Long {
            return Ok(());
        }
        // As in asyncio, callbacks that the protocol has scheduled run before more data or the end of the stream is
        // delivered, because a task may have to set another protocol. So do writes, which may fail and end the
        // connection. The end comes in a turn of its own, with what other connections have received by then.
        if (!full && goes_on) || !core.ready.is_empty() || !this.writing.is_empty() {
            if !drained {
                this.read_next_turn(core, readiness);
            }
            return Ok(());
        }
    }
    if this.base.is_reading() {
        core.requeue(this.base.token.get(), readiness | Readiness::READABLE);
    }
    Ok(())
}

/// The peer has closed its side. Calls `eof_received`, which decides whether ours stays open.
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
            this.update_ownership();
            Ok(())
        }
        Ok(false) => close(this),
        Err(raised) => fatal_error(this, raised, "Fatal error: protocol.eof_received() call failed."),
    }
}
