//! The fields of a stream transport, and methods that reading and writing share.

use std::cell::Cell;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::counted::Counted;
use super::low_water::LowWater;
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::{Ref, Slot, This};
use crate::compat::descriptor;
use crate::event_loop::sock::file_transfer::FileTransfer;
use crate::kernel::core::Core;
use crate::reactor::Readiness;
use crate::transport::base::class::{self, native_transport};
use crate::transport::base::protocol_sink::ProtocolSink;
use crate::transport::base::sizes::DIRECT;
use crate::transport::base::transport::TransportBase;
use crate::transport::base::write_buffer::WriteBuffer;
use crate::transport::base::write_habit::WriteHabit;

/// The fields.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) base: TransportBase,
    pub(crate) sink: ProtocolSink,
    pub(crate) reading: ReadSide,
    pub(crate) writing: WriteSide,
    pub(super) ends: Ends,
    pub(super) server: Slot,
    pub(super) counted: Counted,
}

native_transport!(Stream, base, sink.protocol);

/// When an event is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Gate {
    /// At once.
    Open,
    /// Not before the turn after the one in which reading was resumed.
    NextTurn,
    /// Not before `connection_made` was called, and the task that waits for the connection has run.
    Starting,
}

/// From this size on, a receive directly into a new object costs less than a copy. For messages up to 24 KiB that are
/// echoed both cost the same.
const LARGE: usize = 12 * 1024;

/// How much the next receive is expected to get, from what the last ones got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expected {
    /// Less than [`LARGE`].
    Small,
    /// At least that.
    Large,
    /// At least [`DIRECT`]: a part of a long message.
    Long,
}

impl Expected {
    /// After a receive of `count` bytes. It falls by one step at a time, because a long message has short parts too.
    #[inline(always)]
    pub(super) fn after(self, count: usize) -> Expected {
        match count {
            ..LARGE if self == Expected::Long => Expected::Large,
            ..LARGE => Expected::Small,
            LARGE..DIRECT => self.max(Expected::Large),
            DIRECT.. => Expected::Long,
        }
    }
}

/// The state of reading.
#[derive(Debug)]
pub(crate) struct ReadSide {
    pub(super) gate: Cell<Gate>,
    pub(super) expected: Cell<Expected>,
    /// There may be nothing to receive: it was not the poller that has said so.
    pub(super) is_unsure: Cell<bool>,
    /// The Python socket shows 0 as its protocol number, as the listener does that has accepted the connection: it was
    /// made without one, by `socket.create_server` for example.
    pub(super) hides_proto: bool,
    /// The family of the socket. A read of a Unix socket may be cut at passed file descriptors.
    pub(super) family: c_int,
    pub(super) low_water: LowWater,
}

/// The state of writing.
#[derive(Default)]
pub(crate) struct WriteSide {
    /// The data that is not sent yet.
    pub(super) buffer: WriteBuffer,
    /// When the next write leaves. A TLS connection on this transport asks here for its own writes.
    pub(crate) habit: WriteHabit,
    /// The future of `_make_empty_waiter`, which completes when all data is sent. Writes raise while it is set.
    pub(super) empty_waiter: Slot,
    /// The file that `loop.sendfile` is sending.
    pub(super) sending: Cell<Option<Rc<SendingFile>>>,
    /// The number of polls when the socket was full. An event of that poll is older, so it does not mean that there is
    /// room.
    pub(super) blocked_at: Cell<u64>,
    /// The socket was full at the last send. The poller will report when it has room.
    pub(super) blocked: Cell<bool>,
    /// The transport will be flushed at the end of the step.
    pub(super) queued: Cell<bool>,
    /// `write_eof()` was called.
    pub(super) eof: Cell<bool>,
}

/// A file that is being sent, and the future of the waiting task.
#[derive(Debug)]
pub(super) struct SendingFile {
    pub(super) transfer: FileTransfer,
    pub(super) future: Ref,
}

/// The addresses of both ends. They are kept after the connection was closed.
#[derive(Debug)]
pub(super) struct Ends {
    /// Our own address as an object, if the listener has set it.
    pub(super) sockname: Slot,
    /// Our own address and the peer's, if they are known.
    pub(super) own: Cell<Option<SocketAddr>>,
    pub(super) peer: Cell<Option<SocketAddr>>,
}

impl ReadSide {
    /// May it be a Unix socket? True if the family is not known.
    #[inline(always)]
    pub(super) fn may_be_local(&self) -> bool {
        !matches!(self.family, libc::AF_INET | libc::AF_INET6)
    }
}

impl WriteSide {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The file that is being sent.
    pub(super) fn sending(&self) -> Option<Rc<SendingFile>> {
        let sending = self.sending.take();
        self.sending.set(sending.clone());
        sending
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending().is_some()
    }
}

impl std::fmt::Debug for WriteSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteSide").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

impl Traverse for Stream {
    fn traverse(&self, visitor: &mut Visitor) {
        class::traverse(self, visitor);
        visitor.slots([&self.writing.empty_waiter, &self.ends.sockname, &self.server, self.counted.slot()]);
        if let Some(sending) = self.writing.sending() {
            visitor.reference(&sending.future);
        }
    }

    fn clear(&self) {
        class::clear(self);
        self.server.clear();
        self.counted.leave();
        self.writing.empty_waiter.clear();
        drop(self.writing.sending.take());
    }
}

impl Stream {
    /// The StreamReader needs `missing` bytes before it does anything; 0 if any number is enough.
    #[inline(always)]
    pub(crate) fn await_bytes(&self, missing: usize) {
        self.reading.low_water.follow(missing, || self.descriptor());
    }

    /// Data was stored in the reader, so less is missing.
    #[inline(always)]
    pub(crate) fn follow(&self, missing: impl FnOnce() -> usize) {
        if self.reading.low_water.is_raised() {
            self.await_bytes(missing());
        }
    }

    /// The descriptor for system calls. It is -1, so that they fail, if the program has closed or detached the socket
    /// that it passed to the transport, because another connection may have the number.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> RawFd {
        descriptor::in_slot(&self.base.owner).unwrap_or(self.base.fd.get())
    }
}

impl This<'_, Stream> {
    /// The socket is full. The poller will report when it has room.
    pub(super) fn block(self) {
        self.writing.blocked.set(true);
        self.writing.blocked_at.set(self.base.core().poll_number());
        if !self.base.awaits_data() {
            self.update_ownership();
        }
    }

    /// Sends nothing more in this turn. The poller will not report that, so the transport requeues itself.
    pub(super) fn block_until_next_turn(self, core: &Core) {
        self.block();
        self.writing.blocked_at.set(u64::MAX);
        core.requeue(self.base.token.get(), Readiness::WRITABLE);
    }

    /// Updates whether the loop's table owns the transport. Called when reading stops or resumes, and while it is
    /// stopped, also when writing does. As in asyncio, where such a transport is not in the selector, only the
    /// program's references keep a transport alive that waits for neither. So a half-closed transport that was
    /// forgotten is closed by its finalizer.
    pub(super) fn update_ownership(self) {
        let writing = &self.writing;
        let waits =
            self.base.awaits_data() || writing.blocked.get() || !writing.is_empty() || writing.is_sending();
        // SAFETY: the source of the token is this object, and its finalizer removes it from the table.
        unsafe { self.base.core().fds.set_owned(self.base.token.get(), &self.object(), waits) };
    }

    /// Continues reading in the next turn. Events of this turn for the same data are ignored.
    pub(super) fn read_next_turn(self, core: &Core, readiness: Readiness) {
        self.base.resume_next_turn(core);
        self.reading.gate.set(Gate::NextTurn);
        core.requeue(self.base.token.get(), readiness);
    }

    /// Stops sending a file. If the socket is still full, the next write will find that out.
    pub(super) fn stop_sending(self) {
        let Some(sending) = self.writing.sending.take() else { return };
        self.writing.blocked.set(false);
        if !self.base.awaits_data() {
            self.update_ownership();
        }
        drop(sending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_receive_expects_a_long_message_and_short_ones_end_it_step_by_step() {
        let mut expected = Expected::Small;
        let mut after = |count| {
            expected = expected.after(count);
            expected
        };
        assert_eq!(after(LARGE - 1), Expected::Small);
        assert_eq!(after(LARGE), Expected::Large);
        assert_eq!(after(DIRECT), Expected::Long);
        assert_eq!(after(DIRECT - 1), Expected::Long);
        assert_eq!(after(1), Expected::Large);
        assert_eq!(after(1), Expected::Small);
    }
}
