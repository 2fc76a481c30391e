//! The datagram transport: UDP and Unix datagram sockets, connected or not.
//!
//! An [`Endpoint`](crate::transport::base::endpoint::Endpoint): its life is described there.
//! [`receive`](super::receive) brings datagrams to the protocol, several per system call
//! when several wait; [`send`](super::send) takes them from it, at once or, from the second
//! one of a turn on, together at its end.
//!
//! Sockets of other families, and objects that only look like a socket, are not served here: they get
//! asyncio's own transport.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::ffi::CStr;
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::receive::{self, Peers};
use super::send::{self, Outgoing};
use crate::capi::error::{Outcome, fetch};
use crate::capi::types::Method;
use crate::capi::{Args, Fallible, Fatal, Raised, Ref, Slot, sockaddr, socket};
use crate::compat::transports::patchable;
use crate::event_loop::core::Core;
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::source::Source;
use crate::reactor::{Interest, Readiness};
use crate::transport::base::endpoint::{self, Endpoint, Parts, Variant, fields, lose};
use crate::transport::base::methods::{reading, with, writing};
use crate::transport::base::object;
use crate::transport::base::watching::{polling, watch_or_fail};

/// The fields behind asyncio's base classes.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) endpoint: Endpoint,
    /// The only address that may be sent to, if `create_datagram_endpoint` was given one.
    pub(crate) address: Slot,
    /// The socket has a peer: no address goes to the kernel.
    pub(crate) connected: bool,
    pub(crate) family: i32,
    /// A datagram without data is sent, as from Python 3.13 on; before, it is ignored.
    pub(crate) sends_empty: bool,
    /// What the write buffer's size counts for each datagram beside its data.
    pub(crate) header: usize,
    pub(crate) pending: UnsafeCell<VecDeque<Outgoing>>,
    pub(crate) pending_size: Cell<usize>,
    /// The last address that was sent to and what it means. The tuple is kept, so that it stays the same.
    pub(crate) last_target: UnsafeCell<Option<(Ref, sockaddr::SockAddr)>>,
    /// Waits for the end of the turn to be flushed.
    pub(crate) queued: Cell<bool>,
    /// The socket was full at the last send; the poller will tell when it has room.
    pub(crate) blocked: Cell<bool>,
    /// The turn in which a datagram was last sent at once.
    pub(crate) sent_in: Cell<u64>,
    /// What came in one system call with a datagram during which the protocol paused: (data, address).
    pub(crate) held_back: UnsafeCell<VecDeque<(Ref, Ref)>>,
    pub(crate) peers: UnsafeCell<Peers>,
    /// Where among them the last sender is.
    pub(crate) last_named: Cell<usize>,
    /// The next receive tries for several datagrams.
    pub(crate) expect_more: Cell<bool>,
}

impl Datagram {
    /// What to send to and to receive from; -1 once the program has closed or detached the socket.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> RawFd {
        let owner = &self.endpoint.owner;
        if owner.is_empty() { -1 } else { socket::descriptor(owner.as_ptr()) }
    }
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

impl Variant for Datagram {
    const NAME: &'static CStr = c"wakeloop._core.DatagramTransport";
    const BASES: &'static [&'static str] = &["_FlowControlMixin", "DatagramTransport"];
    const OWNER: (&'static CStr, &'static CStr) = (c"_sock", c"_sock_fd");
    const ENDPOINT: usize = offset_of!(Datagram, endpoint);

    fn kind() -> &'static AtomicPtr<ffi::PyTypeObject> {
        &TYPE
    }

    #[inline(always)]
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    #[inline(always)]
    fn act(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        // SAFETY: the source was registered with a datagram transport.
        let datagram = unsafe { fields::<Datagram>(object.as_ptr()) };
        if datagram.blocked.get()
            && readiness.intersects(Readiness::WRITABLE | Readiness::ERROR | Readiness::WRITE_CLOSED)
        {
            send::flush(object, core)?;
        }
        if readiness.intersects(
            Readiness::READABLE | Readiness::READ_CLOSED | Readiness::WRITE_CLOSED | Readiness::ERROR,
        ) {
            receive::on_readable(datagram, core)?;
        }
        Ok(())
    }

    fn descriptor(&self) -> RawFd {
        Datagram::descriptor(self)
    }

    fn interest(&self) -> Option<Interest> {
        let write = self.blocked.get() && !self.endpoint.ending.get();
        match (self.endpoint.is_reading(), write) {
            (true, true) => Some(Interest::BOTH),
            (true, false) => Some(Interest::READ),
            (false, true) => Some(Interest::WRITE),
            (false, false) => None,
        }
    }

    fn send_gathered(&self, object: &Ref) -> Result<(), Raised> {
        send::send_queued(object, self)
    }

    fn unsent(&self) -> usize {
        self.pending_size.get()
    }

    fn drop_unsent(&self) {
        self.pending_size.set(0);
        self.blocked.set(false);
        // Dropped when the cell is whole again.
        drop((std::mem::take(self.pending()), std::mem::take(self.held_back())));
    }

    fn resumed(&self, core: &Core) {
        if !self.held_back().is_empty() {
            core.requeue(self.endpoint.token.get(), Readiness::READABLE);
            core.wake_if_parked();
        }
    }

    fn each_slot(&self, each: &mut dyn FnMut(&Slot)) {
        each(&self.address);
    }

    fn describe(&self, text: &mut String) {
        let read = polling(&self.endpoint, Interest::READ);
        let write = polling(&self.endpoint, Interest::WRITE);
        let size = self.pending_size.get();
        text.push_str(&format!(" read={read} write=<{write}, bufsize={size}>"));
    }
}

impl Datagram {
    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; the borrow ends before Python runs")]
    pub(crate) fn pending(&self) -> &mut VecDeque<Outgoing> {
        // SAFETY: see the reason above.
        unsafe { &mut *self.pending.get() }
    }

    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; the borrow ends before Python runs")]
    pub(crate) fn held_back(&self) -> &mut VecDeque<(Ref, Ref)> {
        // SAFETY: see the reason above.
        unsafe { &mut *self.held_back.get() }
    }

    /// Can datagrams still be delivered?
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !self.endpoint.ending.get() && !self.endpoint.closing.get() && self.endpoint.fd.get() >= 0
    }
}

impl Source for Datagram {
    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        endpoint::on_ready::<Datagram>(object, core, readiness)
    }

    fn has_descriptor(object: &Ref) -> bool {
        endpoint::has_descriptor::<Datagram>(object)
    }
}

unsafe extern "C" fn sendto(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, datagram: &Datagram| {
        // SAFETY: the arguments of this call.
        let arguments = unsafe { Args::new(values, count, names) };
        // SAFETY: the address of `None`.
        let none = unsafe { ffi::Py_None() };
        let (data, address) = match (arguments.len(), arguments.keywords()) {
            (2, 0) => (arguments.at(0), arguments.at(1)),
            (1, 0) => (arguments.at(0), none),
            _ => {
                let [data, address] = arguments.bind("sendto", ["data", "addr"], 1)?;
                (data, if address.is_null() { none } else { address })
            }
        };
        send::sendto(held, datagram, data, address)
    })
}

unsafe extern "C" fn close(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, datagram: &Datagram| {
        let endpoint = &datagram.endpoint;
        if endpoint.closing.replace(true) {
            return Ok(());
        }
        // What error_received raises is the caller's, but ends nothing half-way.
        let mut outcome = Outcome::default();
        outcome.note(send::send_queued(held, datagram).map_err(|Raised| Fatal));
        if datagram.pending().is_empty() {
            lose(held, datagram, None);
        }
        outcome.note(watch_or_fail(held, datagram, endpoint.core()));
        outcome.finish().map_err(|Fatal| Raised)
    })
}

pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let mut methods = reading::<Datagram>();
    methods.extend(writing::<Datagram>());
    methods.extend([
        Method::Fast(
            c"sendto",
            sendto,
            c"sendto(data, addr=None)\n\nSend a datagram. Several of one turn may leave together at its end; nothing blocks.",
        ),
        Method::NoArgs(
            c"close",
            patchable!(no_args, close, Close),
            c"Stop receiving, send what is pending, then call connection_lost(None) and close the socket.",
        ),
    ]);
    object::make_type::<Datagram>(py, methods)
}

/// `_make_datagram_transport`'s native half, for an ordinary socket of a family that we know. `extra` is
/// complete and the transport's own; `rules` is (sends_empty, header) of the interpreter's asyncio.
#[pyfunction]
#[pyo3(signature = (event_loop, sock, protocol, address, waiter, extra, rules))]
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
    let connected = match extra.get_item(Fallible("peername"))? {
        Some(peer) => peer.is_truthy()?,
        None => false,
    };
    let address = if address.is_truthy()? { Some(Ref::from(address)) } else { None };
    let family = sockaddr::family(sock.as_ptr()).map_err(|Raised| fetch(sock.py()))?;
    let parts = Parts::new(sock, protocol, waiter, extra)?;
    endpoint::make(event_loop, parts, |endpoint| Datagram {
        endpoint,
        address: Slot::new(address),
        connected,
        family,
        sends_empty: rules.0,
        header: rules.1,
        pending: UnsafeCell::default(),
        pending_size: Cell::new(0),
        last_target: UnsafeCell::default(),
        queued: Cell::new(false),
        blocked: Cell::new(false),
        sent_in: Cell::new(0),
        held_back: UnsafeCell::default(),
        peers: UnsafeCell::default(),
        last_named: Cell::new(0),
        expect_more: Cell::new(false),
    })
}
