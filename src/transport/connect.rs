//! Connects to a numeric address, for `create_connection` in the common case.
//!
//! The descriptor is registered once, edge-triggered and for both directions, after the connect has begun. The
//! transport takes over the descriptor with its registration, and the readiness that the poller has reported so far. A
//! Python socket is created only if a program asks the transport for it. While there is an audit hook, asyncio's code
//! connects, because the hook sees the socket.

use std::cell::Cell;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::base::opening::Parts;
use super::base::write_habit::WriteHabit;
use super::stream::address;
use super::stream::create::{StreamParts, create};
use crate::capi::call::copy_current_context;
use crate::capi::error::{raise_errno, raise_os_error};
use crate::capi::fallible::tuple;
use crate::capi::inspect::integer;
use crate::capi::socket::with_socket;
use crate::capi::{Fatal, Raised, Ref, Slot};
use crate::event_loop::event_loop::EventLoop;
use crate::kernel::completion::complete;
use crate::kernel::core::{Core, core_of};
use crate::kernel::futures::new_future;
use crate::kernel::source::Source;
use crate::reactor::{Interest, Readiness, Token};

/// A socket that is connecting. It owns its descriptor until a transport takes it over.
#[pyclass(module = "wakeloop._core", frozen)]
#[derive(Debug)]
pub(crate) struct Connecting {
    event_loop: Slot,
    fd: Cell<RawFd>,
    token: Cell<Token>,
    family: c_int,
    peer: SocketAddr,
    /// The host as the caller passed it, for error messages.
    host: Slot,
    /// A future that completes when the socket is connected. Empty if it was connected at once.
    waiter: Slot,
    /// The readiness that the poller has reported so far.
    reported: Cell<Readiness>,
}

// SAFETY: used by attached threads only, each in a section of the loop; see `capi::section`.
unsafe impl Send for Connecting {}
// SAFETY: as for `Send`.
unsafe impl Sync for Connecting {}

/// The address to connect to, if host and port are numeric and of plain types. The rules are asyncio's for addresses
/// that need no lookup. With `None`, asyncio's code connects.
fn target(host: &Ref, port: &Ref, family: c_int) -> Option<SocketAddr> {
    let text = host.exact_text()?;
    let port = match port.exact_int() {
        Some(number) => u16::try_from(number).ok()?,
        None => {
            let digits = port.exact_text()?;
            digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?
        }
    };
    let address: IpAddr = match family {
        libc::AF_UNSPEC => text.parse().ok()?,
        libc::AF_INET => text.parse::<Ipv4Addr>().ok()?.into(),
        libc::AF_INET6 => text.parse::<Ipv6Addr>().ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// Begins to connect. Returns None if asyncio's own code has to do it. Raises the errors of `socket()` and `connect()`.
#[pyfunction]
pub(crate) fn connect<'py>(
    py: Python<'py>,
    event_loop: &Bound<'py, EventLoop>,
    host: &Bound<'py, PyAny>,
    port: &Bound<'py, PyAny>,
    family: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, Connecting>>> {
    let _held = event_loop.get().outside().enter();
    let target = family
        .extract()
        .ok()
        .and_then(|family| target(&Ref::from(host.clone()), &Ref::from(port.clone()), family));
    let Some(peer) = target else { return Ok(None) };
    let core = event_loop.get().core();
    core.check_process()?;
    core.check_usable()?;
    let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = address::open_stream(family).map_err(|error| raise_os_error(&error))?;
    let connecting = Connecting {
        event_loop: Slot::new(Some(core.this())),
        fd: Cell::new(fd),
        token: Cell::new(Token(0)),
        family,
        peer,
        host: Slot::new(Some(host.clone().into())),
        waiter: Slot::empty(),
        reported: Cell::new(Readiness::EMPTY),
    };
    let connecting = Bound::new(py, connecting)?;
    connecting.get().begin(core, Ref::from(connecting.clone().into_any()))?;
    Ok(Some(connecting))
}

#[pymethods]
impl Connecting {
    /// The future that completes when the socket is connected; None if it is connected.
    #[getter]
    fn waiter<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let _held = self.core().enter();
        self.waiter.get().map(|waiter| waiter.bind(py).clone())
    }

    /// Creates a transport, which owns the connection from then on.
    fn transport<'py>(
        &self,
        py: Python<'py>,
        protocol: Bound<'py, PyAny>,
        waiter: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _held = self.core().enter();
        let fd = self.fd.get();
        if fd < 0 {
            return Err(raise_errno(libc::EBADF).into());
        }
        address::set_nodelay(fd).map_err(|error| raise_os_error(&error))?;
        let parts = Parts {
            fd,
            owner: None,
            protocol: protocol.into(),
            context: copy_current_context()?,
            waiter: Some(waiter.into()),
            extra: None,
            registered: Some(self.reported.get()),
        };
        let stream = StreamParts {
            family: self.family,
            hides_proto: false,
            server: None,
            sockname: None,
            peer: self.peer_address(),
            habit: WriteHabit::default(),
        };
        let transport = create(self.core(), parts, stream)?;
        self.fd.set(-1);
        self.__clear__();
        Ok(transport.bind(py).clone())
    }

    /// Closes the socket.
    fn close(&self) {
        let core = self.core();
        let _held = core.enter();
        let fd = self.fd.replace(-1);
        if fd < 0 {
            return;
        }
        // Dropped at the end, because the table may have the last reference to this object.
        let entry = (core.fds.token(fd) == self.token.get()).then(|| core.fds.remove(fd));
        // SAFETY: this object owned the descriptor, and its field is -1 now.
        unsafe { libc::close(fd) };
        self.__clear__();
        drop(entry);
    }

    fn __traverse__(&self, visit: pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::gc::PyTraverseError> {
        let slots = [&self.event_loop, &self.host, &self.waiter];
        slots.into_iter().try_for_each(|slot| slot.visit_with(&visit))
    }

    /// Keeps the loop: closing needs it, and the clear of the loop breaks the cycle.
    fn __clear__(&self) {
        [&self.host, &self.waiter].into_iter().for_each(Slot::clear);
    }
}

impl Connecting {
    fn core(&self) -> &Core {
        // SAFETY: `connect` has stored one of our loops in this slot, and nothing clears it.
        unsafe { core_of(self.event_loop.as_ptr()) }
    }

    /// Starts the connect, and registers the descriptor.
    fn begin(&self, core: &Core, this: Ref) -> PyResult<()> {
        let fd = self.fd.get();
        core.note_io();
        if let Err(error) = with_socket(fd, |socket| socket.connect(&self.peer.into())) {
            // After EINTR the connect continues in the background.
            if !matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR | libc::EAGAIN)) {
                return Err(raise_os_error(&error).into());
            }
            self.waiter.set(Some(new_future(core)?));
        }
        self.token.set(core.insert_source::<Connecting>(fd, this).map_err(|error| raise_os_error(&error))?);
        let Some(poller) = core.poller_to_change() else { return Ok(()) };
        poller.register_edge(fd, self.token.get(), Interest::BOTH).map_err(|error| {
            // Otherwise the table would keep this object alive, and the descriptor open.
            drop(core.fds.remove(fd));
            raise_os_error(&error).into()
        })
    }

    /// The address as in asyncio, with the host as it was passed.
    fn address(&self) -> Result<Ref, Raised> {
        let host = self.host.get().unwrap_or_else(Ref::none);
        let port = integer(self.peer.port())?;
        match self.peer {
            SocketAddr::V4(_) => tuple([host, port]),
            SocketAddr::V6(_) => tuple([host, port, integer(0)?, integer(0)?]),
        }
    }

    /// The peer's address. A connect to the unspecified address (0.0.0.0 or ::) reaches this host at another address.
    fn peer_address(&self) -> Option<SocketAddr> {
        if self.peer.ip().to_canonical().is_unspecified() {
            return address::peer_address(self.fd.get());
        }
        Some(self.peer)
    }

    /// Handles an event.
    fn handle_event(&self, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        self.reported.set(self.reported.get() | readiness);
        let trouble = Readiness::ERROR | Readiness::READ_CLOSED | Readiness::WRITE_CLOSED;
        if !readiness.intersects(Readiness::WRITABLE | trouble) {
            return Ok(());
        }
        let Some(waiter) = self.waiter.take() else { return Ok(()) };
        let errno = if readiness.intersects(trouble) { address::pending_error(self.fd.get()) } else { 0 };
        if errno == 0 {
            return complete(core, &waiter);
        }
        let failure = self.address().and_then(|address| Ok((integer(errno)?, address)));
        match failure {
            Ok((errno, address)) => {
                core.support("connect_failed", &[waiter.borrow(), errno.borrow(), address.borrow()])
            }
            Err(raised) => core.unraisable(raised),
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.close();
    }
}

impl Source for Connecting {
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        let bound = object.bind(object.py());
        bound.cast::<Connecting>().map_or(Ok(()), |connecting| connecting.get().handle_event(core, readiness))
    }
}
