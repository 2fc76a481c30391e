//! The fields of a datagram transport.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;

use socket2::SockAddr;

use super::peers::Peers;
use crate::capi::loop_cell::LoopQueue;
use crate::capi::{Ref, Slot};
use crate::transport::base::class::native_transport;
use crate::transport::base::transport::TransportBase;

/// The fields behind asyncio's base classes.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(super) base: TransportBase,
    pub(super) protocol: Slot,
    /// The only address that may be sent to, if `create_datagram_endpoint` was given one.
    pub(super) address: Slot,
    pub(super) rules: Rules,
    pub(super) sending: SendSide,
    pub(super) receiving: ReceiveSide,
}

native_transport!(Datagram, base, protocol, |it| [&it.address]);

/// What never changes in the life of a transport.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) family: i32,
    /// The socket has a peer: no address goes to the kernel.
    pub(super) connected: bool,
    /// A datagram without data is sent, as from Python 3.13 on; before, it is ignored.
    pub(super) sends_empty: bool,
    /// What the write buffer's size counts for each datagram beside its data.
    pub(super) header: usize,
}

/// What sending needs to know.
#[derive(Debug, Default)]
pub(super) struct SendSide {
    queue: UnsafeCell<VecDeque<Outgoing>>,
    /// How many bytes the queue counts in the write buffer's size.
    pub(super) size: Cell<usize>,
    /// The last address that was sent to and what it means. The tuple is kept, so that it stays the same.
    pub(super) last_target: UnsafeCell<Option<(Ref, SockAddr)>>,
    /// The turn in which a datagram was last sent at once.
    pub(super) sent_in: Cell<u64>,
    /// Is to be flushed at the end of the turn.
    pub(super) queued: Cell<bool>,
    /// The socket was full at the last send. The poller will report when it has room.
    pub(super) blocked: Cell<bool>,
}

/// What receiving needs to know.
#[derive(Debug, Default)]
pub(super) struct ReceiveSide {
    /// What came in one system call with a datagram during which the protocol paused: data and address.
    pub(super) held_back: LoopQueue<(Ref, Ref)>,
    pub(super) peers: Peers,
    /// The next receive tries for several datagrams.
    #[cfg_attr(not(any(target_os = "linux", target_os = "android")), expect(dead_code))]
    pub(super) expects_more: Cell<bool>,
}

/// Where a datagram goes.
#[derive(Debug)]
pub(super) enum Target {
    /// To the socket's peer.
    Peer,
    Address(SockAddr),
    /// An address that only Python's own socket understands: a host name, a scope, something wrong.
    Python(Ref),
}

/// A datagram that is not sent yet: immutable bytes, kept by reference.
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
    /// What waits for the socket, or for the end of the turn.
    #[allow(clippy::mut_from_ref, reason = "loop thread only; the borrow ends before Python runs")]
    #[inline(always)]
    pub(super) fn queue(&self) -> &mut VecDeque<Outgoing> {
        // SAFETY: see the reason above.
        unsafe { &mut *self.queue.get() }
    }
}
