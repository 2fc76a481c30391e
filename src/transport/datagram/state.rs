//! The fields of a datagram transport.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;

use socket2::SockAddr;

use super::peers::Peers;
use crate::capi::loop_cell::LoopQueue;
use crate::capi::{Ref, Slot};
use crate::transport::base::class::native_transport;
use crate::transport::base::transport::TransportBase;
use crate::transport::base::write_habit::WriteHabit;

/// The fields.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(super) base: TransportBase,
    pub(super) protocol: Slot,
    /// The fixed address, if `create_datagram_endpoint` was called with one. Datagrams may be sent only to it.
    pub(super) address: Slot,
    pub(super) rules: Rules,
    pub(super) sending: SendSide,
    pub(super) receiving: ReceiveSide,
}

native_transport!(Datagram, base, protocol, |it| [&it.address]);

/// Properties that never change.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) family: i32,
    /// The socket is connected, so datagrams are sent without an address.
    pub(super) connected: bool,
    /// Empty datagrams are sent, as since Python 3.13. Before, they are ignored.
    pub(super) sends_empty: bool,
    /// How many bytes each datagram counts in the write buffer in addition to its data.
    pub(super) header: usize,
}

/// The state of sending.
#[derive(Debug, Default)]
pub(super) struct SendSide {
    queue: UnsafeCell<VecDeque<Outgoing>>,
    /// The size of the queue in bytes, as asyncio counts it.
    pub(super) size: Cell<usize>,
    /// The last address, as a Python object and in the kernel's form.
    pub(super) last_target: UnsafeCell<Option<(Ref, SockAddr)>>,
    /// When the next datagram leaves.
    pub(super) habit: WriteHabit,
    /// While a batch is delivered: will further datagrams of it be, when the protocol's method returns?
    pub(super) batch: Cell<Option<bool>>,
    /// The transport will be flushed at the end of the step.
    pub(super) queued: Cell<bool>,
    /// The socket was full at the last send. The poller will report when it has room.
    pub(super) blocked: Cell<bool>,
}

/// The state of receiving.
#[derive(Debug, Default)]
pub(super) struct ReceiveSide {
    /// Datagrams with their senders that were received but not delivered, because the protocol paused reading in the
    /// middle of a batch.
    pub(super) held_back: LoopQueue<(Ref, Ref)>,
    pub(super) peers: Peers,
    /// The next receive is a `recvmmsg`.
    #[cfg_attr(not(any(target_os = "linux", target_os = "android")), expect(dead_code))]
    pub(super) expects_more: Cell<bool>,
}

/// The destination of a datagram.
#[derive(Debug)]
pub(super) enum Target {
    /// The peer of a connected socket.
    Peer,
    Address(SockAddr),
    /// An address for Python's own socket: a host name, an IPv6 scope, or a wrong address.
    Python(Option<Ref>),
}

/// A datagram in the queue.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) bytes: Ref,
    pub(super) target: Target,
}

impl Outgoing {
    #[inline(always)]
    pub(super) fn content(&self) -> &[u8] {
        self.bytes.bytes().unwrap_or_default()
    }
}

impl SendSide {
    /// Has the next datagram sent at once. Called before `error_received`: if that method sends another datagram and
    /// this fails, asyncio reports the error before `sendto` returns.
    pub(super) fn send_next_at_once(&self) {
        self.habit.forget();
    }

    /// The datagrams that wait for the socket or for the next one.
    #[allow(clippy::mut_from_ref, reason = "loop thread only; the borrow ends before Python runs")]
    #[inline(always)]
    pub(super) fn queue(&self) -> &mut VecDeque<Outgoing> {
        // SAFETY: only the loop's thread calls this, and every caller ends the borrow before Python code runs.
        unsafe { &mut *self.queue.get() }
    }
}
