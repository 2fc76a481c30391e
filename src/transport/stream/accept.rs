//! A listening socket: accepts connections, and creates their transports.
//!
//! A listener is registered level-triggered, so an event need not accept all connections: a single connection costs one
//! `accept`. The limit of connections per event doubles as long as each turn has an event that reaches it. If
//! descriptors or memory have run out, the listener pauses for a second, as in asyncio.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use pyo3::prelude::*;

use super::address;
use super::create::{StreamParts, create};
use crate::capi::call::{call0, copy_context, given_or_copied, in_context};
use crate::capi::error::{raise_io, take_unless_fatal};
use crate::capi::inspect::integer;
use crate::capi::{Exception, Fallible, Fatal, Raised, Ref, Slot, sockaddr};
use crate::compat::descriptor;
use crate::event_loop::core::Core;
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::source::{Source, SourceKind, Status};
use crate::reactor::{Interest, Readiness};
use crate::transport::base::opening::Parts;

/// One listening socket of a server.
#[pyclass(module = "wakeloop._core", frozen)]
#[derive(Debug)]
pub(crate) struct Listener {
    fd: RawFd,
    family: i32,
    /// The most connections per event.
    backlog: usize,
    /// The limit of connections for the last event.
    budget: Cell<usize>,
    /// The last turn with an event that reached its limit; 0 if the last event did not.
    last_full_turn: Cell<u64>,
    factory: Slot,
    socket: Slot,
    server: Slot,
    context: Slot,
    /// The address to which it is bound. Empty for a wildcard address, because then the connections have other
    /// addresses.
    sockname: Slot,
}

// SAFETY: the module is declared `gil_used`, so every access holds the GIL.
unsafe impl Send for Listener {}
// SAFETY: the GIL guards it, as for `Send`.
unsafe impl Sync for Listener {}

#[pymethods]
impl Listener {
    fn __traverse__(&self, visit: pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::gc::PyTraverseError> {
        self.slots().into_iter().try_for_each(|slot| slot.visit_with(&visit))
    }

    fn __clear__(&self) {
        self.slots().into_iter().for_each(Slot::clear);
    }
}

/// The native half of `_start_serving`, for connections without TLS.
#[pyfunction]
#[pyo3(signature = (event_loop, factory, sock, server, backlog, sockname, context=None))]
#[allow(clippy::too_many_arguments, reason = "the hook's own arguments, and the socket's name")]
pub(crate) fn start_listener(
    py: Python<'_>,
    event_loop: &Bound<'_, EventLoop>,
    factory: Bound<'_, PyAny>,
    sock: Bound<'_, PyAny>,
    server: Option<Bound<'_, PyAny>>,
    backlog: i64,
    sockname: Option<Bound<'_, PyAny>>,
    context: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let core = event_loop.get().core();
    core.check_usable()?;
    core.check_process()?;
    let fd: RawFd = sock.call_method0(Fallible("fileno"))?.extract()?;
    let sock = Ref::from(sock);
    let family = sockaddr::family(&sock)?;
    let listener = Listener {
        fd,
        family,
        backlog: backlog.clamp(1, 4096) as usize,
        budget: Cell::new(1),
        last_full_turn: Cell::new(0),
        factory: Slot::new(Some(factory.into())),
        socket: Slot::new(Some(sock)),
        server: Slot::new(server.map(Ref::from)),
        context: Slot::new(Some(given_or_copied(context)?)),
        sockname: Slot::new(sockname.map(Ref::from)),
    };
    let listener = Ref::from(Bound::new(py, listener)?.into_any());
    let token = core.insert_source::<Listener>(fd, listener).map_err(|error| raise_io(&error))?;
    let Some(poller) = core.poller() else { return Ok(()) };
    if let Err(error) = poller.ensure_level(fd, token, Interest::READ) {
        drop(core.fds.remove(fd));
        return Err(raise_io(&error).into());
    }
    Ok(())
}

impl Source for Listener {
    fn on_ready(object: &Ref, core: &Core, _readiness: Readiness) -> Result<(), Fatal> {
        let bound = object.bind(object.py());
        let Ok(listener) = bound.cast::<Listener>() else { return Ok(()) };
        listener.get().accept(object, core)
    }

    fn status(object: &Ref) -> Status {
        let detached =
            object.bind(object.py()).cast::<Listener>().is_ok_and(|it| it.get().descriptor() != it.get().fd);
        Status { kind: SourceKind::Listener, detached, ..Status::default() }
    }
}

impl Listener {
    fn slots(&self) -> [&Slot; 5] {
        [&self.factory, &self.socket, &self.server, &self.context, &self.sockname]
    }

    /// The descriptor for system calls. It is -1 if the program has closed or detached the socket, because another file
    /// may have the number.
    fn descriptor(&self) -> RawFd {
        descriptor::in_slot(&self.socket).unwrap_or(-1)
    }

    fn accept(&self, object: &Ref, core: &Core) -> Result<(), Fatal> {
        // If the event of the previous turn has reached its limit, connections are queued, and the limit doubles.
        // Otherwise it is 1.
        let turn = core.counters.turns.get();
        let queued = self.last_full_turn.replace(0).wrapping_add(1) == turn;
        let budget = if queued { (self.budget.get() * 2).min(self.backlog) } else { 1 };
        self.budget.set(budget);
        for count in 0..budget {
            // The factory may have closed the server or the socket, and another file may have the number.
            if count > 0 && core.fds.source(self.fd).is_none_or(|source| !source.is(object)) {
                return Ok(());
            }
            match address::accept(self.descriptor()) {
                Ok((fd, peer)) => {
                    core.counters.connections_accepted.add(1);
                    self.connection(core, fd, peer)?;
                }
                Err(error) => return self.failed(core, &error),
            }
        }
        self.last_full_turn.set(turn);
        Ok(())
    }

    #[cold]
    fn failed(&self, core: &Core, error: &io::Error) -> Result<(), Fatal> {
        if matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
        ) {
            return Ok(());
        }
        core.counters.accept_errors.add(1);
        let exhausted =
            matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM));
        let Raised = raise_io(error);
        let exception = take_unless_fatal()?;
        let socket = self.socket.get().unwrap_or_else(Ref::none);
        if !exhausted {
            let arguments = [core.borrow(), socket.borrow(), exception.borrow()];
            return core.report(&exception, "accept_broken", &arguments);
        }
        core.remove_listener(self.fd);
        let [factory, server] =
            [&self.factory, &self.server].map(|slot| slot.get().unwrap_or_else(Ref::none));
        let event_loop = core.borrow();
        let report = || -> Result<(), Raised> {
            let backlog = integer(self.backlog as i64)?;
            let arguments = [&*event_loop, &factory, &socket, &server, &backlog, &exception].map(Ref::borrow);
            Ok(core.report(&exception, "accept_exhausted", &arguments)?)
        };
        // In the listener's context, because the new listener after the pause copies the current context.
        let reported = self.context.get().map_or_else(report, |context| in_context(&context, report));
        reported.or_else(|raised| core.unraisable(raised))
    }

    /// Creates a protocol and a transport for a new connection, in a new context.
    fn connection(&self, core: &Core, fd: OwnedFd, peer: Option<SocketAddr>) -> Result<(), Fatal> {
        let mut protocol = None;
        match self.transport(core, fd.as_raw_fd(), peer, &mut protocol) {
            Ok(()) => {
                // The transport owns the descriptor now.
                let _ = fd.into_raw_fd();
                Ok(())
            }
            Err(Raised) => {
                drop(fd);
                let exception = take_unless_fatal()?;
                if !core.is_debug() {
                    return Ok(());
                }
                let protocol = protocol.unwrap_or_else(Ref::none);
                let arguments = [core.borrow(), exception.borrow(), protocol.borrow()];
                core.report(&exception, "connection_failed", &arguments)
            }
        }
    }

    fn transport(
        &self,
        core: &Core,
        fd: RawFd,
        peer: Option<SocketAddr>,
        protocol: &mut Option<Ref>,
    ) -> Result<(), Raised> {
        let (Some(factory), Some(context)) = (self.factory.get(), self.context.get()) else {
            return Err(Exception::RuntimeError.raise("the listener was cleared by the garbage collector"));
        };
        if core.is_debug() {
            let (server, number) = (self.server.get().unwrap_or_else(Ref::none), integer(fd)?);
            core.support("accepted", &[server.borrow(), number.borrow()]).map_err(|Fatal| Raised)?;
        }
        let context = copy_context(&context)?;
        let made = in_context(&context, || call0(&factory))?;
        *protocol = Some(made.clone_ref());
        let parts =
            Parts { fd, owner: None, protocol: made, context, waiter: None, extra: None, registered: None };
        let stream = StreamParts {
            family: self.family,
            server: self.server.get(),
            sockname: self.sockname.get(),
            peer,
        };
        create(core, parts, stream).map(drop)
    }
}
