//! A listening socket: accepts connections, and creates their transports.
//!
//! A listener is registered level-triggered, so an event need not accept all connections: a single connection costs one
//! `accept`. The limit of connections per event doubles as long as each poll has an event that reaches it. If
//! descriptors or memory have run out, the listener pauses for a second, as in asyncio. [`sharing`](super::sharing) says
//! what is different if other processes listen on the same socket.
//!
//! asyncio accepts the whole backlog at each event. So when the server closes, the listener accepts what the last event
//! has left: the system would reset these connections.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use pyo3::prelude::*;

use super::create::{StreamParts, create};
use super::sharing::{PAUSE, PERIOD, Sharing};
use super::{address, clients};
use crate::capi::audit::has_hook;
use crate::capi::call::{call0, copy_context, given_or_copied, in_context};
use crate::capi::error::{raise_os_error, take_unless_fatal, undisturbed, unless_raised};
use crate::capi::imports::{imports, support};
use crate::capi::inspect::integer;
use crate::capi::sockaddr::internet_to_python;
use crate::capi::{Exception, Fallible, Fatal, Raised, Ref, Slot, sockaddr};
use crate::clock::monotonic_nanos;
use crate::compat::descriptor;
use crate::compat::python::is_unpatched;
use crate::event_loop::event_loop::EventLoop;
use crate::kernel::core::Core;
use crate::kernel::source::{Source, SourceKind, Status};
use crate::reactor::{Alarm, Interest, Readiness};
use crate::transport::base::opening::Parts;
use crate::transport::base::write_habit::{SharedHabits, WriteHabit};

/// One listening socket of a server.
#[pyclass(module = "wakeloop._core", frozen)]
#[derive(Debug)]
pub(crate) struct Listener {
    fd: RawFd,
    family: i32,
    /// It was made without a protocol number, so its connections show none either.
    hides_proto: bool,
    /// The most connections per event.
    backlog: usize,
    /// The limit of connections for the last event.
    budget: Cell<usize>,
    /// The number of the poll whose event reached the limit; 0 if the last event did not.
    last_full_poll: Cell<u64>,
    sharing: Sharing,
    /// Ends pauses, and tries to accept from time to time. `None` if no other process is known to share the socket.
    alarm: RefCell<Option<Alarm>>,
    /// The poller reports connections.
    armed: Cell<bool>,
    /// A connection that wakes this process wakes no other one.
    exclusive: Cell<bool>,
    factory: Slot,
    socket: Slot,
    server: Slot,
    context: Slot,
    /// A check whether everything is unpatched that asyncio would call to accept a connection.
    unpatched: Slot,
    /// The address to which it is bound. Empty for a wildcard address, because then the connections have other
    /// addresses.
    sockname: Slot,
    /// How the last connection wrote.
    habits: SharedHabits,
}

// SAFETY: used by attached threads only, each in a section of the loop; see `capi::section`.
unsafe impl Send for Listener {}
// SAFETY: as for `Send`.
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
#[pyo3(signature = (event_loop, factory, sock, server, backlog, sockname, unpatched, context=None))]
#[allow(clippy::too_many_arguments, reason = "the hook's own arguments, and what Python has found out")]
pub(crate) fn start_listener(
    py: Python<'_>,
    event_loop: &Bound<'_, EventLoop>,
    factory: Bound<'_, PyAny>,
    sock: Bound<'_, PyAny>,
    server: Option<Bound<'_, PyAny>>,
    backlog: i64,
    sockname: Option<Bound<'_, PyAny>>,
    unpatched: Bound<'_, PyAny>,
    context: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let _held = event_loop.get().outside().enter();
    let core = event_loop.get().core();
    core.check_usable()?;
    core.check_process()?;
    let fd: RawFd = sock.call_method0(Fallible("fileno"))?.extract()?;
    let proto: i32 = sock.getattr(Fallible("proto"))?.extract()?;
    let sock = Ref::from(sock);
    let family = sockaddr::family(&sock)?;
    let listener = Listener {
        fd,
        family,
        hides_proto: proto == 0,
        backlog: backlog.clamp(1, 4096) as usize,
        budget: Cell::new(1),
        last_full_poll: Cell::new(0),
        sharing: Sharing::default(),
        alarm: RefCell::default(),
        armed: Cell::new(true),
        exclusive: Cell::new(false),
        factory: Slot::new(Some(factory.into())),
        socket: Slot::new(Some(sock)),
        server: Slot::new(server.map(Ref::from)),
        context: Slot::new(Some(given_or_copied(context)?)),
        unpatched: Slot::new(Some(unpatched.into())),
        sockname: Slot::new(sockname.map(Ref::from)),
        habits: SharedHabits::default(),
    };
    let listener = Ref::from(Bound::new(py, listener)?.into_any());
    let token = core.insert_source::<Listener>(fd, listener).map_err(|error| raise_os_error(&error))?;
    let Some(poller) = core.poller_to_change() else { return Ok(()) };
    let registered = poller.ensure_level(fd, token, Interest::READ);
    drop(poller);
    if let Err(error) = registered {
        drop(core.fds.remove(fd));
        return Err(raise_os_error(&error).into());
    }
    if let Some(object) = core.fds.source(fd)
        && let Ok(listener) = object.bind(py).cast::<Listener>()
    {
        listener.get().look(&object, core, monotonic_nanos());
    }
    Ok(())
}

/// The native half of `_stop_serving`, which then removes the listener and closes its socket.
#[pyfunction]
pub(crate) fn accept_rest(event_loop: &Bound<'_, EventLoop>, fd: RawFd) -> PyResult<()> {
    let _held = event_loop.get().outside().enter();
    let core = event_loop.get().core();
    let Some(object) = core.fds.source(fd) else { return Ok(()) };
    let bound = object.bind(event_loop.py());
    let Ok(listener) = bound.cast::<Listener>() else { return Ok(()) };
    if core.is_parents() {
        // The connections are the parent's.
        return Ok(());
    }
    Ok(listener.get().accept_rest(core).map_err(|Fatal| Raised)?)
}

impl Source for Listener {
    fn on_ready(object: &Ref, core: &Core, _readiness: Readiness) -> Result<(), Fatal> {
        let bound = object.bind(object.py());
        let Ok(listener) = bound.cast::<Listener>() else { return Ok(()) };
        listener.get().accept(object, core)
    }

    fn status(object: &Ref) -> Status {
        let bound = object.bind(object.py());
        let Ok(listener) = bound.cast::<Listener>() else { return Status::default() };
        let listener = listener.get();
        let detached = listener.descriptor() != listener.fd;
        let alarm = listener.alarm.borrow().as_ref().map(AsRawFd::as_raw_fd);
        Status { kind: SourceKind::Listener, detached, alarm, ..Status::default() }
    }
}

/// The alarm of a listener that shares its socket.
struct Tick;

impl Source for Tick {
    fn on_ready(object: &Ref, core: &Core, _readiness: Readiness) -> Result<(), Fatal> {
        let bound = object.bind(object.py());
        let Ok(listener) = bound.cast::<Listener>() else { return Ok(()) };
        listener.get().tick(object, core)
    }
}

/// Is it a server of asyncio's kind that was closed?
fn is_closed(server: &Ref) -> bool {
    unless_raised(server.getattr(&imports()._sockets)).is_some_and(|sockets| sockets.is_none())
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.sharing.end(self.descriptor());
    }
}

impl Listener {
    fn slots(&self) -> [&Slot; 6] {
        [&self.factory, &self.socket, &self.server, &self.context, &self.unpatched, &self.sockname]
    }

    /// The descriptor for system calls. It is -1 if the program has closed or detached the socket, because another file
    /// may have the number.
    fn descriptor(&self) -> RawFd {
        descriptor::in_slot(&self.socket).unwrap_or(-1)
    }

    /// Looks for other processes that share the socket, and changes the registration if there are the first ones or
    /// none any more. If that fails, the next look tries again.
    #[cold]
    fn look(&self, object: &Ref, core: &Core, now: u64) {
        let shares = self.sharing.look(self.descriptor(), now);
        if shares == self.is_shared() {
            return;
        }
        if shares {
            if let Some(alarm) = self.begin_sharing(object, core).ok().flatten() {
                core.remove_source(alarm.as_raw_fd(), false);
            }
            if self.is_shared() {
                self.register(core);
            }
            return;
        }
        let alarm = self.alarm.take();
        self.register(core);
        match alarm {
            Some(alarm) if self.armed.get() => core.remove_source(alarm.as_raw_fd(), false),
            alarm => drop(self.alarm.replace(alarm)),
        }
    }

    /// Makes the alarm. Returns it if it cannot be registered.
    fn begin_sharing(&self, object: &Ref, core: &Core) -> io::Result<Option<Alarm>> {
        let alarm = Alarm::new()?;
        alarm.set(PERIOD)?;
        let fd = alarm.as_raw_fd();
        let token = core.insert_source::<Tick>(fd, object.clone_ref())?;
        let registered =
            core.poller_to_change().map(|poller| poller.register_edge(fd, token, Interest::READ));
        if !matches!(registered, Some(Ok(()))) {
            return Ok(Some(alarm));
        }
        self.alarm.replace(Some(alarm));
        Ok(None)
    }

    /// Does another process share the socket? Looks for one if it is time for that.
    #[cold]
    fn is_shared_now(&self, object: &Ref, core: &Core, now: u64) -> bool {
        if self.sharing.is_look_due(now) {
            self.look(object, core, now);
        }
        self.is_shared()
    }

    /// Did another process share the socket at the last look?
    fn is_shared(&self) -> bool {
        self.alarm.borrow().is_some()
    }

    /// Should a connection wake this process alone? Not while a thread keeps the GIL: the loop would be woken, but could
    /// not accept, and the other processes would sleep.
    fn is_exclusive(&self, core: &Core) -> bool {
        self.is_shared() && !core.gil.is_kept(core.polls.last_poll())
    }

    /// Registers the socket again, unless the program has closed it. If it is shared, that is behind the other processes.
    fn register(&self, core: &Core) {
        if self.descriptor() != self.fd {
            return;
        }
        let Some(poller) = core.poller_to_change() else { return };
        let token = core.fds.token(self.fd);
        // It is not registered during a pause.
        let _ = poller.deregister(self.fd);
        self.exclusive.set(self.is_exclusive(core));
        let registered = if self.exclusive.get() {
            poller.register_exclusive(self.fd, token)
        } else {
            poller.register_level(self.fd, token, Interest::READ)
        };
        // If memory has run out, the alarm tries again.
        self.armed.set(registered.is_ok());
    }

    fn tick(&self, object: &Ref, core: &Core) -> Result<(), Fatal> {
        if self.descriptor() != self.fd || core.fds.source(self.fd).is_none_or(|source| !source.is(object)) {
            // The program has closed the socket itself.
            if let Some(alarm) = self.alarm.take() {
                core.remove_source(alarm.as_raw_fd(), false);
            }
            return Ok(());
        }
        if let Some(alarm) = &*self.alarm.borrow() {
            // It fails for a time of zero only.
            let _ = alarm.set(PERIOD);
        }
        if !self.armed.get() {
            self.sharing.note_turn(core.turn_number());
            self.register(core);
            return Ok(());
        }
        self.sharing.forgive();
        self.look(object, core, core.polls.last_poll());
        if self.exclusive.get() != self.is_exclusive(core) {
            self.register(core);
        }
        self.accept_one(core)
    }

    /// Accepts at most one connection of a socket that other processes share.
    fn accept_shared(&self, core: &Core) -> Result<(), Fatal> {
        let load = self.server.get().and_then(|server| clients::count(&server));
        if self.sharing.gives_way(self.descriptor(), core.turn_number(), load)
            && let Some(alarm) = &*self.alarm.borrow()
            && alarm.set(PAUSE).is_ok()
            && let Some(poller) = core.poller_to_change()
        {
            self.armed.set(poller.deregister(self.fd).is_err());
            return Ok(());
        }
        self.accept_one(core)
    }

    fn accept_one(&self, core: &Core) -> Result<(), Fatal> {
        match address::accept(self.descriptor()) {
            Ok((fd, peer)) => {
                core.probe.counters.connections_accepted.add(1);
                self.sharing.note_turn(core.turn_number());
                self.register(core);
                self.connection(core, fd, peer)
            }
            Err(error) => self.failed(core, &error),
        }
    }

    fn accept(&self, object: &Ref, core: &Core) -> Result<(), Fatal> {
        if !self.unpatched.get().is_some_and(|check| is_unpatched(&check)) {
            return self.accept_by_asyncio(core);
        }
        let now = core.polls.last_poll();
        if !self.sharing.is_alone(now) && self.is_shared_now(object, core, now) {
            return self.accept_shared(core);
        }
        // If the event of the previous poll has reached its limit, connections are queued, and the limit doubles.
        // Otherwise it is 1.
        let poll = core.poll_number();
        let queued = self.last_full_poll.replace(0).wrapping_add(1) == poll;
        let budget = if queued { (self.budget.get() * 2).min(self.backlog) } else { 1 };
        self.budget.set(budget);
        for count in 0..budget {
            // The factory may have closed the server or the socket, and another file may have the number.
            if count > 0 && core.fds.source(self.fd).is_none_or(|source| !source.is(object)) {
                return Ok(());
            }
            match address::accept(self.descriptor()) {
                Ok((fd, peer)) => {
                    core.probe.counters.connections_accepted.add(1);
                    self.connection(core, fd, peer)?;
                }
                Err(error) => return self.failed(core, &error),
            }
        }
        self.last_full_poll.set(poll);
        Ok(())
    }

    /// Accepts what the last event has left of the backlog, because the server closes. What other processes can accept
    /// is left to them. In the protocol factory it does nothing: asyncio drops the connection for which the factory
    /// closes the server, and the others too.
    #[cold]
    fn accept_rest(&self, core: &Core) -> Result<(), Fatal> {
        let full = self.last_full_poll.replace(0);
        // The event would be repeated by the next poll.
        if full == 0 || core.poll_number() > full + 1 || self.is_shared() {
            return Ok(());
        }
        if !self.unpatched.get().is_some_and(|check| is_unpatched(&check)) {
            return Ok(());
        }
        for _ in self.budget.get()..self.backlog {
            // An error means that there are no more, or that there is no descriptor for the next.
            let Ok((fd, peer)) = address::accept(self.descriptor()) else { break };
            core.probe.counters.connections_accepted.add(1);
            self.connection_by(core, fd, peer, |parts, stream| self.create_for_closed(core, parts, stream))?;
        }
        Ok(())
    }

    /// Creates a transport that asyncio would have attached before the server was closed. A server knows by `_sockets`
    /// that it is closed, and then refuses transports.
    #[cold]
    fn create_for_closed(&self, core: &Core, parts: Parts, stream: StreamParts) -> Result<Ref, Raised> {
        let Some(server) = self.server.get().filter(is_closed) else { return create(core, parts, stream) };
        let names = imports();
        server.setattr(&names._sockets, &names.no_arguments)?;
        let created = create(core, parts, stream);
        undisturbed(|| {
            server.setattr(&names._sockets, &Ref::none()).unwrap_or_else(|Raised| server.write_unraisable());
        });
        created
    }

    /// Lets asyncio's code accept the connections, because the program has patched what that calls.
    #[cold]
    fn accept_by_asyncio(&self, core: &Core) -> Result<(), Fatal> {
        let [factory, socket, server] = self.callers_objects();
        let event_loop = core.borrow();
        let accept = || -> Result<(), Raised> {
            let backlog = integer(self.backlog as i64)?;
            let arguments = [&*event_loop, &factory, &socket, &server, &backlog].map(Ref::borrow);
            core.support("accept_by_asyncio", &arguments).map_err(|Fatal| Raised)
        };
        let accepted = self.context.get().map_or_else(accept, |context| in_context(&context, accept));
        accepted.or_else(|raised| core.unraisable(raised))
    }

    fn callers_objects(&self) -> [Ref; 3] {
        [&self.factory, &self.socket, &self.server].map(|slot| slot.get().unwrap_or_else(Ref::none))
    }

    #[cold]
    fn failed(&self, core: &Core, error: &io::Error) -> Result<(), Fatal> {
        if matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
        ) {
            return Ok(());
        }
        core.probe.counters.accept_errors.add(1);
        let exhausted =
            matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM));
        let Raised = raise_os_error(error);
        let exception = take_unless_fatal()?;
        if !exhausted {
            return self.broken(core, &exception);
        }
        core.remove_listener(self.fd);
        let [factory, socket, server] = self.callers_objects();
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

    /// Reports an exception with which asyncio's callback would end.
    #[cold]
    fn broken(&self, core: &Core, exception: &Ref) -> Result<(), Fatal> {
        let [_, socket, _] = self.callers_objects();
        core.report(exception, "accept_broken", &[core.borrow(), socket.borrow(), exception.borrow()])
    }

    /// The Python socket of a new connection, for audit hooks and for the log of debug mode. A hook may deny it.
    #[cold]
    fn accepted_socket(&self, core: &Core, fd: RawFd, peer: Option<SocketAddr>) -> Result<Ref, Raised> {
        let (socket, number) = (self.socket.get().unwrap_or_else(Ref::none), integer(fd)?);
        let made =
            Ref::from(support(socket.py(), "accepted_socket")?).call(&[socket.borrow(), number.borrow()])?;
        if core.is_debug() {
            let server = self.server.get().unwrap_or_else(Ref::none);
            let peer = peer.as_ref().map_or_else(|| Ok(Ref::none()), internet_to_python)?;
            core.support("accepted", &[server.borrow(), made.borrow(), peer.borrow()])
                .map_err(|Fatal| Raised)?;
        }
        Ok(made)
    }

    /// Creates a protocol and a transport for a new connection, in a new context.
    fn connection(&self, core: &Core, fd: OwnedFd, peer: Option<SocketAddr>) -> Result<(), Fatal> {
        self.connection_by(core, fd, peer, |parts, stream| create(core, parts, stream))
    }

    /// As [`connection`](Self::connection), with a function that creates the transport.
    fn connection_by(
        &self,
        core: &Core,
        fd: OwnedFd,
        peer: Option<SocketAddr>,
        create: impl FnOnce(Parts, StreamParts) -> Result<Ref, Raised>,
    ) -> Result<(), Fatal> {
        let mut owner = None;
        if has_hook() || core.is_debug() {
            match self.accepted_socket(core, fd.as_raw_fd(), peer) {
                Ok(made) => owner = Some(made),
                Err(Raised) => {
                    drop(fd);
                    return self.broken(core, &take_unless_fatal()?);
                }
            }
        }
        let mut protocol = None;
        match self.transport(fd.as_raw_fd(), owner.as_ref(), peer, &mut protocol, create) {
            Ok(()) => {
                // The transport owns the descriptor now.
                let _ = fd.into_raw_fd();
                Ok(())
            }
            Err(Raised) => {
                let exception = take_unless_fatal()?;
                if let Some(Err(raised)) = owner.map(|owner| owner.call_method(&imports().detach, &[])) {
                    drop(raised.take());
                }
                drop(fd);
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
        fd: RawFd,
        owner: Option<&Ref>,
        peer: Option<SocketAddr>,
        protocol: &mut Option<Ref>,
        create: impl FnOnce(Parts, StreamParts) -> Result<Ref, Raised>,
    ) -> Result<(), Raised> {
        let (Some(factory), Some(context)) = (self.factory.get(), self.context.get()) else {
            return Err(Exception::RuntimeError.raise("the listener was cleared by the garbage collector"));
        };
        let context = copy_context(&context)?;
        let made = in_context(&context, || call0(&factory))?;
        *protocol = Some(made.clone_ref());
        let owner = owner.map(Ref::clone_ref);
        let parts = Parts { fd, owner, protocol: made, context, waiter: None, extra: None, registered: None };
        let stream = StreamParts {
            family: self.family,
            hides_proto: self.hides_proto,
            server: self.server.get(),
            sockname: self.sockname.get(),
            peer,
            habit: WriteHabit::of_listener(self.habits.clone()),
        };
        create(parts, stream).map(drop)
    }
}
