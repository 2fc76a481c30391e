//! The fields of a stream transport, and the small steps on them that reading and writing share.

use std::cell::Cell;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;

use super::counted::Counted;
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::{Ref, Slot, This};
use crate::compat::descriptor;
use crate::event_loop::core::Core;
use crate::event_loop::sock::file_transfer::FileTransfer;
use crate::reactor::Readiness;
use crate::transport::base::class::{self, native_transport};
use crate::transport::base::protocol_sink::ProtocolSink;
use crate::transport::base::transport::TransportBase;
use crate::transport::base::write_buffer::WriteBuffer;

/// The fields behind asyncio's base class.
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

/// When readiness is acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Gate {
    /// At once.
    Open,
    /// In the turn after the one in which reading was resumed.
    NextTurn,
    /// When `connection_made` was called and the task that waits for the connection has had a turn.
    Starting,
}

/// What reading needs to know.
#[derive(Debug)]
pub(crate) struct ReadSide {
    pub(super) gate: Cell<Gate>,
    /// The last message was large.
    pub(super) large: Cell<bool>,
    /// The family of the socket. A read of a Unix socket may end at a descriptor.
    pub(super) family: c_int,
}

/// What writing needs to know.
#[derive(Default)]
pub(crate) struct WriteSide {
    /// What waits for the socket.
    pub(super) buffer: WriteBuffer,
    /// A future of asyncio's, which is done when everything is sent. Writing is refused while there is one.
    pub(super) empty_waiter: Slot,
    /// The file that `loop.sendfile` sends then. What takes it out drops it.
    pub(super) sending: Cell<Option<Rc<SendingFile>>>,
    /// The number of the last poll before the socket was full: what that poll said of room is older.
    pub(super) blocked_at: Cell<u64>,
    /// The socket was full at the last send. The poller will report when it has room.
    pub(super) blocked: Cell<bool>,
    /// Is to be flushed at the end of the turn.
    pub(super) queued: Cell<bool>,
    /// `write_eof()` was called.
    pub(super) eof: Cell<bool>,
}

/// A file that is sent, and the future that waits for that.
#[derive(Debug)]
pub(super) struct SendingFile {
    pub(super) transfer: FileTransfer,
    pub(super) future: Ref,
}

/// The addresses of both ends. They outlive the connection.
#[derive(Debug)]
pub(super) struct Ends {
    /// Our own address as an object, where the listener knows it without asking.
    pub(super) sockname: Slot,
    /// The addresses in the kernel's form, until somebody asks for an object.
    pub(super) own: Cell<Option<SocketAddr>>,
    pub(super) peer: Cell<Option<SocketAddr>>,
}

impl ReadSide {
    /// Whether it is a Unix socket, for all that is known.
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

    /// The file that is sent.
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
        visitor.slots(self.sink.methods());
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
    /// What to send to and to receive from. -1, which every system call refuses, once the program has closed or detached
    /// the socket that it had given to the transport: the number may be another connection's by then.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> RawFd {
        descriptor::in_slot(&self.base.owner).unwrap_or(self.base.fd.get())
    }
}

impl This<'_, Stream> {
    /// The socket takes no more. The poller will report when it does.
    pub(super) fn block(self) {
        self.writing.blocked.set(true);
        self.writing.blocked_at.set(self.base.core().counters.polls.get());
        if !self.base.awaits_data() {
            self.settle();
        }
    }

    /// Nothing is to be sent before the next turn, of which the poller knows nothing.
    pub(super) fn block_until_next_turn(self, core: &Core) {
        self.block();
        self.writing.blocked_at.set(u64::MAX);
        core.requeue(self.base.token.get(), Readiness::WRITABLE);
    }

    /// Reading has come to a halt or goes on; or, while it rests, writing has. A transport that waits for neither is kept
    /// alive by its user alone, as in asyncio, which has taken it out of its selector: one that was forgotten half closed
    /// is closed by the collector.
    pub(super) fn settle(self) {
        let writing = &self.writing;
        let waits =
            self.base.awaits_data() || writing.blocked.get() || !writing.is_empty() || writing.is_sending();
        // SAFETY: the source behind the token is this object, whose finalizer takes it out of the table.
        unsafe { self.base.core().fds.set_owned(self.base.token.get(), &self.object(), waits) };
    }

    /// Reads on in the next turn, also where another event of this one reports the same data.
    pub(super) fn read_next_turn(self, core: &Core, readiness: Readiness) {
        self.base.resume_next_turn(core);
        self.reading.gate.set(Gate::NextTurn);
        core.requeue(self.base.token.get(), readiness);
    }

    /// Stops sending a file. The socket may still be full; the next write will find that out.
    pub(super) fn stop_sending(self) {
        let Some(sending) = self.writing.sending.take() else { return };
        self.writing.blocked.set(false);
        if !self.base.awaits_data() {
            self.settle();
        }
        drop(sending);
    }
}
