//! The stream transport: one TCP or Unix connection.
//!
//! A raw heap type on top of `asyncio.transports._FlowControlMixin`, because a Python class cannot mix a
//! native class with asyncio's (both have slots), and because `isinstance(transport, asyncio.Transport)`,
//! `sendfile`'s fallback and other people's checks must hold. The base's own slots stay empty: everything
//! it would keep there is an attribute of ours.
//!
//! **Life.** Made by `_make_socket_transport` or by a listener; a queued step calls `connection_made` and
//! then registers the descriptor, once, for both directions, edge-triggered. Closing marks it, sends what
//! is pending and queues a step that calls `connection_lost`, closes the descriptor and lets everything
//! go. The descriptor is never deregistered by hand: closing it does that, and an event that was already
//! under way carries a dead token.
//!
//! **Contexts.** Each connection has one context, copied when the transport is made (for an accepted
//! connection from that of `start_serving`); every callback of the protocol runs in it.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::ffi;

use super::start::{not_started, start};

use super::clients;
use super::send_file::SendingFile;
use crate::capi::call::{call0, getattr, in_kept_context, method};
use crate::capi::error::{Outcome, raise_errno, raise_io, take_unless_fatal, undisturbed};
use crate::capi::fallible::string_or_none;
use crate::capi::imports::imports;
use crate::capi::{Fatal, Raised, Ref, Slot, socket};
use crate::event_loop::core::{Core, core_of};
use crate::event_loop::source::Source;
use crate::reactor::{Readiness, Token};
use crate::transport::base::endpoint::close_failed;
use crate::transport::base::flow_control::Marks;
use crate::transport::base::protocol_sink::Receiver;
use crate::transport::base::write_buffer::WriteBuffer;

/// What is a reason to read: data, or some end that a read will tell of.
pub(super) const ARRIVED: Readiness = Readiness::from_bits(
    Readiness::READABLE.bits()
        | Readiness::READ_CLOSED.bits()
        | Readiness::WRITE_CLOSED.bits()
        | Readiness::ERROR.bits(),
);

/// The fields behind the base class.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) event_loop: Slot,
    pub(crate) receiver: Receiver,
    pub(crate) context: Slot,
    /// The Python socket. An accepted connection has none until somebody asks for it.
    pub(crate) socket: Slot,
    pub(crate) extra: Slot,
    pub(crate) server: Slot,
    /// The server's list, while it counts the connection.
    pub(crate) clients: Slot,
    /// The protocol's bound `connection_made`, until it was called.
    pub(super) made: Slot,
    pub(super) waiter: Slot,
    pub(crate) empty_waiter: Slot,
    /// The file that `loop.sendfile` sends, once that waiter is done.
    pub(crate) sending: SendingFile,
    /// What `connection_lost` will be called with.
    pub(super) lost_with: Slot,
    /// The name of our end, where the listener knows it without asking.
    pub(super) sockname: Slot,
    /// Of the socket; only known for sure where there may be no Python socket to ask.
    pub(super) family: c_int,
    /// Both ends, kept in the kernel's form until somebody asks: they outlive the connection.
    pub(super) name: Cell<Option<SocketAddr>>,
    pub(super) peer: Cell<Option<SocketAddr>>,
    pub(crate) buffer: UnsafeCell<WriteBuffer>,
    pub(crate) marks: Marks,
    pub(crate) fd: Cell<RawFd>,
    pub(crate) token: Cell<Token>,
    pub(crate) conn_lost: Cell<u32>,
    pub(crate) closing: Cell<bool>,
    pub(crate) paused: Cell<bool>,
    pub(crate) started: Cell<bool>,
    /// The descriptor was registered before the transport was made.
    pub(super) registered: bool,
    /// What the poller told before `connection_made` was called, or since reading was resumed in this turn.
    pub(super) early: Cell<Readiness>,
    /// `started` waits for the turn after the one in which reading was resumed, and which that was.
    pub(crate) resuming: Cell<bool>,
    pub(super) resumed_in: Cell<u64>,
    /// The peer has closed its side and the protocol keeps ours open.
    pub(crate) read_done: Cell<bool>,
    /// write_eof() was called.
    pub(crate) eof: Cell<bool>,
    pub(crate) protocol_paused: Cell<bool>,
    /// Reading, and calling the protocol with what was read.
    pub(super) receiving: Cell<bool>,
    /// What the poller told meanwhile, in a loop that ran inside of that call.
    pub(super) missed: Cell<Readiness>,
    /// Waits for the end of the turn to be flushed.
    pub(crate) queued: Cell<bool>,
    /// The socket was full at the last send; an edge will tell.
    pub(crate) blocked: Cell<bool>,
    /// The number of the last poll before that: what it told of room is older.
    pub(super) blocked_at: Cell<u64>,
    /// The last message was large: the next receive goes straight into a bytes object.
    pub(crate) large: Cell<bool>,
    pub(super) weaklist: Cell<*mut ffi::PyObject>,
    pub(super) dict: Slot,
}

/// What a transport is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) fd: RawFd,
    pub(crate) family: c_int,
    pub(crate) socket: Option<Ref>,
    pub(crate) protocol: Ref,
    pub(crate) context: Ref,
    pub(crate) waiter: Option<Ref>,
    pub(crate) extra: Option<Ref>,
    pub(crate) server: Option<Ref>,
    pub(crate) sockname: Option<Ref>,
    pub(crate) peer: Option<SocketAddr>,
    /// The descriptor stands in the poller already, both ways and edge-triggered, and its entry in the table is the
    /// caller's to give; with what the poller has told of it so far.
    pub(crate) registered: Option<Readiness>,
}

pub(super) static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());
/// Where [`Stream`] begins in the object: the size of asyncio's base class.
pub(super) static BASE: AtomicUsize = AtomicUsize::new(0);

/// The fields of a transport.
///
/// # Safety
/// `object` is a stream transport and outlives the result.
#[inline(always)]
pub(crate) unsafe fn stream_of<'a>(object: *mut ffi::PyObject) -> &'a Stream {
    // SAFETY: the caller's word. Relaxed: the offset is stored once, at import.
    unsafe { &*object.cast::<u8>().add(BASE.load(Ordering::Relaxed)).cast::<Stream>() }
}

/// Is `object` a stream transport?
#[inline(always)]
pub(crate) fn is_stream(object: *mut ffi::PyObject) -> bool {
    // SAFETY: a live object. Relaxed: stored once, at import; the type has no subclasses.
    unsafe { ffi::Py_TYPE(object) == TYPE.load(Ordering::Relaxed) }
}

impl Stream {
    /// Makes a transport and queues its start. On failure the descriptor stays the caller's.
    pub(crate) fn create(core: &Core, parts: Parts) -> Result<Ref, Raised> {
        core.check_process()?;
        core.check_usable()?;
        // SAFETY: fresh, zeroed memory of the type; every field of ours is written before anyone sees it,
        // and zeroed slots of the base are empty.
        let object = unsafe {
            let object = ffi::PyType_GenericAlloc(TYPE.load(Ordering::Relaxed), 0);
            if object.is_null() {
                return Err(Raised);
            }
            let place = object.cast::<u8>().add(BASE.load(Ordering::Relaxed)).cast::<Stream>();
            place.write(Stream {
                event_loop: Slot::new(Some(core.this())),
                receiver: Receiver::empty(),
                context: Slot::new(Some(parts.context)),
                socket: Slot::empty(),
                extra: Slot::new(parts.extra),
                server: Slot::empty(),
                clients: Slot::empty(),
                made: Slot::empty(),
                waiter: Slot::new(parts.waiter),
                empty_waiter: Slot::empty(),
                sending: SendingFile::default(),
                lost_with: Slot::empty(),
                sockname: Slot::new(parts.sockname),
                family: parts.family,
                name: Cell::new(None),
                peer: Cell::new(parts.peer),
                buffer: UnsafeCell::default(),
                marks: Marks::new(),
                fd: Cell::new(-1),
                token: Cell::new(Token(0)),
                conn_lost: Cell::new(0),
                closing: Cell::new(false),
                paused: Cell::new(false),
                started: Cell::new(false),
                registered: parts.registered.is_some(),
                early: Cell::new(parts.registered.unwrap_or_default()),
                resuming: Cell::new(false),
                resumed_in: Cell::new(0),
                read_done: Cell::new(false),
                eof: Cell::new(false),
                protocol_paused: Cell::new(false),
                receiving: Cell::new(false),
                missed: Cell::new(Readiness::EMPTY),
                queued: Cell::new(false),
                blocked: Cell::new(false),
                blocked_at: Cell::new(0),
                large: Cell::new(false),
                weaklist: Cell::new(null_mut()),
                dict: Slot::empty(),
            });
            Ref::from_owned(object).ok_or(Raised)?
        };
        // SAFETY: just made.
        let stream = unsafe { stream_of(object.as_ptr()) };
        stream.made.set(Some(getattr(parts.protocol.as_ptr(), imports().connection_made.as_ptr())?));
        stream.receiver.set(parts.protocol)?;
        if let Some(server) = parts.server {
            stream.clients.set(clients::attach(&server, &object)?);
            stream.server.set(Some(server));
        }
        core.note_io();
        let entered = match parts.registered {
            Some(_) => core
                .replace_source::<Transport>(parts.fd, object.clone_ref())
                .ok_or_else(|| raise_errno(libc::EBADF)),
            None => core
                .insert_source::<Transport>(parts.fd, object.clone_ref())
                .map_err(|error| raise_io(&error)),
        };
        let token = entered.inspect_err(|_| stream.leave_server(&object))?;
        // From here on the transport owns the descriptor.
        stream.socket.set(parts.socket);
        stream.fd.set(parts.fd);
        stream.token.set(token);
        core.call_native(object.clone_ref(), start);
        Ok(object)
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Core {
        // SAFETY: `create` put one of our loops there, and it stays until dealloc.
        unsafe { core_of(self.event_loop.as_ptr()) }
    }

    #[allow(
        clippy::mut_from_ref,
        reason = "GIL-guarded cell; the borrow ends before anything of Python is dropped"
    )]
    pub(crate) fn buffer(&self) -> &mut WriteBuffer {
        // SAFETY: see the reason above.
        unsafe { &mut *self.buffer.get() }
    }

    /// What to send to and to receive from. -1, which every system call refuses, once the program has closed or detached
    /// the socket that it had given to the transport: the number may be another connection's by then.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> RawFd {
        if self.socket.is_empty() { self.fd.get() } else { socket::descriptor(self.socket.as_ptr()) }
    }

    /// Has nobody put anything on the instance?
    #[inline(always)]
    pub(crate) fn has_no_own_attributes(&self) -> bool {
        // SAFETY: null or a dict.
        self.dict.is_empty() || unsafe { ffi::PyDict_Size(self.dict.as_ptr()) } == 0
    }

    /// The socket takes no more. The poller will tell when it does.
    pub(crate) fn block(&self) {
        self.blocked.set(true);
        self.blocked_at.set(self.core().counters.polls.get());
        if !self.awaits_data() {
            self.settle();
        }
    }

    /// Is anything to be read sooner or later?
    #[inline(always)]
    pub(crate) fn awaits_data(&self) -> bool {
        self.is_reading() && !self.read_done.get()
    }

    /// Reading has come to a halt, or goes on; or, while it rests, writing. A transport that waits for neither is kept
    /// alive by its user alone, as in asyncio, which has taken it out of its selector: one that was forgotten half
    /// closed is closed by the collector.
    pub(crate) fn settle(&self) {
        let waits =
            self.awaits_data() || self.blocked.get() || !self.buffer().is_empty() || !self.sending.is_empty();
        // SAFETY: these fields lie at that distance in a live transport, whose `finalize` takes it out of the table.
        unsafe {
            let object = std::ptr::from_ref(self).cast::<u8>().sub(BASE.load(Ordering::Relaxed));
            let object = Ref::from_borrowed(object.cast_mut().cast());
            self.core().fds.keep(self.token.get(), &object, waits);
        }
    }

    /// Nothing is to be sent before the next turn, which is not for the poller to tell.
    pub(crate) fn block_until_called(&self, core: &Core) {
        self.block();
        self.blocked_at.set(u64::MAX);
        core.requeue(self.token.get(), Readiness::WRITABLE);
    }

    pub(crate) fn is_reading(&self) -> bool {
        !self.closing.get() && !self.paused.get()
    }

    /// Reads again from the next turn on, as asyncio does: what this turn's poll told is for then. An end that was told
    /// already is told again, to the protocol of then: TLS that starts on a connection whose peer is gone fails at once.
    pub(crate) fn resume(&self) {
        let core = self.core();
        self.resumed_in.set(core.counters.turns.get());
        self.read_done.set(false);
        if self.started.get() || self.resuming.get() {
            // What arrived meanwhile made its edge already: look without one.
            self.go_on_next_turn(core, Readiness::READABLE | Readiness::READ_CLOSED);
            core.wake_if_parked();
        }
    }

    /// Reads on in the next turn, also where another event of this one tells of the same data.
    pub(crate) fn go_on_next_turn(&self, core: &Core, readiness: Readiness) {
        self.resumed_in.set(core.counters.turns.get());
        self.started.set(false);
        self.resuming.set(true);
        core.requeue(self.token.get(), readiness);
    }

    /// Was reading resumed in this very turn?
    pub(super) fn has_just_resumed(&self, core: &Core) -> bool {
        self.resumed_in.get() == core.counters.turns.get()
    }

    /// Runs `body` in the connection's context.
    pub(crate) fn in_context<T>(&self, body: impl FnOnce() -> Result<T, Raised>) -> Result<T, Raised> {
        match self.context.get() {
            Some(context) => in_kept_context(&context, body),
            None => body(),
        }
    }

    #[inline(always)]
    fn receive(&self, object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        /// Ends the receiving, by a panic too.
        struct Receiving<'a>(&'a Stream);

        impl Drop for Receiving<'_> {
            #[inline(always)]
            fn drop(&mut self) {
                self.0.receiving.set(false);
            }
        }

        let receiving = Receiving(self);
        let received = super::receive::on_readable(object, self, core, readiness);
        drop(receiving);
        let mut again = self.missed.replace(Readiness::EMPTY);
        if received.is_err() {
            // The edge is spent; the rest of what it told is for the next run.
            again |= readiness;
        }
        if !again.is_empty() {
            core.requeue(self.token.get(), again);
        }
        received
    }

    /// Queues `connection_lost(exception)`, once.
    pub(crate) fn lose(&self, object: &Ref, exception: Option<Ref>) {
        self.conn_lost.set(self.conn_lost.get() + 1);
        self.lost_with.set(exception);
        self.core().call_native(object.clone_ref(), connection_lost);
    }

    /// asyncio's `_force_close`: what the socket does not take is dropped.
    pub(crate) fn force_close(&self, object: &Ref, exception: Option<Ref>) {
        if self.conn_lost.get() > 0 || self.fd.get() < 0 {
            return;
        }
        super::send::send_last(self);
        let unsent = self.buffer().take();
        drop(unsent);
        self.closing.set(true);
        self.lose(object, exception);
    }

    /// asyncio's `_fatal_error`, with the error that is set: connection trouble is logged in debug mode
    /// only, anything else goes to the exception handler. The connection is lost either way.
    #[cold]
    pub(crate) fn fatal_error(&self, object: &Ref, raised: Raised, message: &str) -> Result<(), Fatal> {
        self.end_with(object, raised, message, "fatal_error")
    }

    /// The same with a function of `wakeloop._support` that tells of it.
    pub(super) fn end_with(
        &self,
        object: &Ref,
        raised: Raised,
        message: &str,
        tell: &str,
    ) -> Result<(), Fatal> {
        let Raised = raised;
        let exception = take_unless_fatal()?;
        let message = string_or_none(message);
        let core = self.core();
        let protocol = self.receiver.protocol.get().unwrap_or_else(Ref::none);
        // A fatal error of the report leaves when the connection is lost: the last send may fail on top of it.
        let mut told = Outcome::default();
        told.note(core.report(
            &exception,
            tell,
            &[core.object(), object.as_ptr(), protocol.as_ptr(), exception.as_ptr(), message.as_ptr()],
        ));
        self.force_close(object, Some(exception));
        told.finish()
    }

    /// Takes the transport out of the loop's table, if it is what stands there: the number may have a new owner already.
    pub(super) fn leave_table(&self, fd: RawFd) {
        let core = self.core();
        if core.fds.token(fd) == self.token.get() {
            drop(core.fds.remove(fd));
        }
    }

    /// Detaches a transport that could not be made from its server. The error that is set stays.
    #[cold]
    fn leave_server(&self, object: &Ref) {
        let Some(server) = self.server.take() else { return };
        undisturbed(|| {
            if clients::detach(&server, object, self.clients.take()).is_err() {
                // SAFETY: a live object; the error is set.
                unsafe { ffi::PyErr_WriteUnraisable(object.as_ptr()) };
            }
        });
    }

    /// Is no longer counted by its server.
    pub(crate) fn leave_clients(&self) {
        if let Some(clients) = self.clients.take() {
            clients::leave(&clients);
        }
    }

    /// Closes the descriptor, through its Python socket if it has one.
    pub(super) fn close_descriptor(&self) -> Result<(), Raised> {
        self.remember_addresses();
        let fd = self.fd.replace(-1);
        // Kept, closed: get_extra_info still shows it.
        let socket = self.socket.get();
        if fd >= 0 {
            // A peer on this very loop hears of it in the next turn, as in asyncio.
            self.core().note_io();
            self.leave_table(fd);
        }
        match socket {
            Some(socket) => method(&socket, imports().close.as_ptr(), &[]).map(drop),
            None if fd >= 0 => {
                // SAFETY: the transport owned this descriptor and has forgotten it.
                match unsafe { libc::close(fd) } {
                    0 => Ok(()),
                    _ => Err(raise_io(&std::io::Error::last_os_error())),
                }
            }
            None => Ok(()),
        }
    }

    /// # Safety
    /// Called by the collector with its own visitor.
    pub(super) unsafe fn traverse(&self, visit: ffi::visitproc, argument: *mut c_void) -> c_int {
        for slot in [
            &self.event_loop,
            &self.context,
            &self.socket,
            &self.extra,
            &self.server,
            &self.clients,
            &self.made,
            &self.waiter,
            &self.empty_waiter,
            &self.lost_with,
            &self.sockname,
            &self.dict,
        ] {
            // SAFETY: the collector's own visitor.
            let result = unsafe { slot.visit(visit, argument) };
            if result != 0 {
                return result;
            }
        }
        let file = self.sending.future();
        // SAFETY: as above, on an object that we own.
        let result = if file.is_null() { 0 } else { unsafe { visit(file, argument) } };
        // SAFETY: as above.
        if result != 0 { result } else { unsafe { self.receiver.visit(visit, argument) } }
    }
}

/// The last step.
pub(crate) fn connection_lost(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with a transport.
    let stream = unsafe { stream_of(object.as_ptr()) };
    let exception = stream.lost_with.take().unwrap_or_else(Ref::none);
    // A fatal error waits until the connection is cleaned up.
    let mut outcome = Outcome::default();
    if let Some(protocol) = stream.receiver.protocol.get() {
        let told = stream
            .in_context(|| method(&protocol, imports().connection_lost.as_ptr(), &[exception.as_ptr()]));
        outcome.note(told.map(drop).or_else(|raised| {
            let context = stream.context.get().unwrap_or_else(Ref::none);
            core.report_step(object, "_call_connection_lost", Some(&exception), &context, raised)
        }));
    }
    outcome.note(stream.close_descriptor().or_else(|raised| close_failed(object, core, raised)));
    stream.receiver.clear();
    if let Some(server) = stream.server.take() {
        let detached = clients::detach(&server, object, stream.clients.take());
        outcome.note(detached.or_else(|raised| core.unraisable(raised)));
    }
    if let Some(waiter) = stream.empty_waiter.get() {
        outcome.note(super::send::fail_empty_waiter(core, &waiter));
    }
    outcome.note(super::send_file::lost(stream, core, &exception));
    stream.context.clear();
    outcome.finish()
}

/// What a token of ours leads to.
#[derive(Debug)]
pub(crate) struct Transport;

impl Source for Transport {
    fn has_descriptor(object: &Ref) -> bool {
        // SAFETY: the source was registered with a transport.
        let stream = unsafe { stream_of(object.as_ptr()) };
        stream.descriptor() == stream.fd.get()
    }

    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        // SAFETY: the source was registered with a transport.
        let stream = unsafe { stream_of(object.as_ptr()) };
        if !stream.started.get() {
            return not_started(object, stream, core, readiness);
        }
        // A write that the socket refused since the poll waits for another edge.
        let writes = stream.blocked.get()
            && readiness.intersects(Readiness::WRITABLE | Readiness::ERROR | Readiness::WRITE_CLOSED)
            && stream.blocked_at.get() != core.counters.polls.get();
        // Reading comes first: what the peer said before it closed must not be lost to the error of a write.
        if readiness.intersects(ARRIVED) {
            if stream.receiving.replace(true) {
                // One message after the other, whatever the protocol does with the first.
                stream.missed.set(stream.missed.get() | readiness);
            } else {
                stream.receive(object, core, readiness)?;
            }
        }
        if writes && stream.blocked.get() && stream.conn_lost.get() == 0 {
            return if stream.sending.is_empty() {
                super::send::flush(object, core)
            } else {
                super::send_file::go_on(stream, core)
            };
        }
        Ok(())
    }
}

/// Calls a function of no arguments in the connection's context.
pub(crate) fn call_in_context(stream: &Stream, function: &Ref) -> Result<Ref, Raised> {
    stream.in_context(|| call0(function))
}
