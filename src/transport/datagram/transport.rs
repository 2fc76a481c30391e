//! The datagram transport: UDP and Unix datagram sockets, connected or not.
//!
//! For sockets of other families, and for objects that are not exactly a `socket.socket`, asyncio's own transport is
//! used.

use std::ffi::CStr;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::state::{Datagram, ReceiveSide, Rules, SendSide};
use super::{receive, send};
use crate::capi::methods::{Attribute, Method};
use crate::capi::{Arguments, Borrowed, Fallible, Fatal, Raised, Ref, Slot, This, sockaddr};
use crate::compat::descriptor;
use crate::compat::transports::Replaced;
use crate::event_loop::event_loop::EventLoop;
use crate::kernel::core::Core;
use crate::kernel::source::SourceKind;
use crate::reactor::{Interest, Readiness};
use crate::transport::base::class::make_class;
use crate::transport::base::events::EventHandler;
use crate::transport::base::methods::{close_now, get_write_buffer_size, patchable, reading, writing};
use crate::transport::base::opening::{self, Parts};
use crate::transport::base::transport::TransportKind;
use crate::transport::base::watching::polling;

impl TransportKind for Datagram {
    const NAME: &'static CStr = c"wakeloop._core.DatagramTransport";
    const DOC: &'static CStr =
        c"The transport of a datagram socket, UDP or Unix. Each sendto() sends one datagram.";
    const REPLACES: Replaced = Replaced::Datagram;
    const BASES: &'static [&'static str] = &["_FlowControlMixin", "DatagramTransport"];
    const DESCRIPTOR: &'static CStr = c"_sock_fd";
    const OWNER: &'static CStr = c"_sock";

    #[inline(always)]
    fn descriptor(&self) -> RawFd {
        descriptor::in_slot(&self.base.owner).unwrap_or(-1)
    }

    fn interest(&self) -> Option<Interest> {
        Interest::of(self.base.is_reading(), self.sending.blocked.get() && !self.base.life.is_lost())
    }

    fn reading_resumed(this: This<'_, Self>, core: &Core) {
        if !this.receiving.held_back.is_empty() {
            core.requeue(this.base.token.get(), Readiness::READABLE);
            core.wake_if_parked();
        }
    }

    fn send_gathered(this: This<'_, Self>) -> Result<(), Raised> {
        send::send_queued(this)
    }

    fn source_kind(&self) -> SourceKind {
        SourceKind::Datagram
    }

    fn unsent(&self) -> usize {
        self.sending.size.get()
    }

    /// Unlike [`unsent`](TransportKind::unsent), this also sees empty datagrams, whose size may be 0.
    fn is_drained(&self) -> bool {
        self.sending.queue().is_empty()
    }

    fn drop_unsent(&self) {
        self.sending.size.set(0);
        self.sending.blocked.set(false);
        let unsent = std::mem::take(self.sending.queue());
        drop((unsent, self.receiving.held_back.take()));
    }

    fn describe(&self, text: &mut String) {
        if self.base.core().is_closed() {
            // A closed loop polls no more.
            return;
        }
        let read = polling(&self.base, Interest::READ);
        let write = polling(&self.base, Interest::WRITE);
        // What waits for the next datagram was sent already in asyncio.
        let size = if self.sending.blocked.get() { self.unsent() } else { 0 };
        text.push_str(&format!(" read={read} write=<{write}, bufsize={size}>"));
    }
}

impl EventHandler for Datagram {
    #[inline(always)]
    fn handle(this: This<'_, Self>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        let trouble = Readiness::WRITE_CLOSED | Readiness::ERROR;
        if this.sending.blocked.get() && readiness.intersects(Readiness::WRITABLE | trouble) {
            send::send_waiting(this, core)?;
        }
        if readiness.intersects(Readiness::READABLE | Readiness::READ_CLOSED | trouble) {
            receive::on_readable(this, core)?;
        }
        Ok(())
    }
}

fn sendto(this: This<'_, Datagram>, arguments: Arguments<'_>) -> Result<(), Raised> {
    let ([data], [address]) = arguments.bind("sendto", ["data"], ["addr"])?;
    send::sendto(this, data, address.unwrap_or(Borrowed::none()))
}

const METHODS: &[Method<Datagram>] = &[
    Method::fast(c"sendto", sendto, c"sendto(data, addr=None)\n\nSend a datagram. Never blocks."),
    Method::no_args(
        c"close",
        patchable!(no_args, Datagram, close_now::<Datagram>, Close),
        c"Stop receiving, send pending data, then call connection_lost(None) and close the socket.",
    ),
];

const ATTRIBUTES: &[Attribute<Datagram>] = &[
    Attribute::read_only(c"_address", |this: This<'_, Datagram>| this.address.get()),
    Attribute::read_only(c"_buffer", send::buffer),
    Attribute::read_only(c"_buffer_size", get_write_buffer_size::<Datagram>),
];

pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    make_class(py, &[&reading(), &writing(), METHODS], ATTRIBUTES)
}

/// The native half of `_make_datagram_transport`, for a plain socket of a known family. `extra` has all entries, and
/// belongs to the transport. `rules` is (sends_empty, header) for the interpreter's asyncio.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the hook's own arguments, and what Python has found out")]
pub(crate) fn make_datagram<'py>(
    event_loop: &Bound<'py, EventLoop>,
    sock: Bound<'py, PyAny>,
    protocol: Bound<'py, PyAny>,
    address: Bound<'py, PyAny>,
    waiter: Option<Bound<'py, PyAny>>,
    extra: Bound<'py, PyDict>,
    rules: (bool, usize),
) -> PyResult<Bound<'py, PyAny>> {
    let _held = event_loop.get().outside().enter();
    let connected = extra.get_item(Fallible("peername"))?.map_or(Ok(false), |peer| peer.is_truthy())?;
    let address = if address.is_truthy()? { Some(Ref::from(address)) } else { None };
    let family = sockaddr::family(&Ref::from(sock.clone()))?;
    let rules = Rules { family, connected, sends_empty: rules.0, header: rules.1 };
    let parts = Parts::of_owner(sock, protocol, waiter, Some(extra.into_any().into()), None)?;
    let transport = opening::create(event_loop.get().core(), parts, |base| Datagram {
        base,
        protocol: Slot::empty(),
        address: Slot::new(address),
        rules,
        sending: SendSide::default(),
        receiving: ReceiveSide::default(),
    })?;
    Ok(transport.bind(event_loop.py()).clone())
}
