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
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::write_buffer::WriteBuffer;
use crate::capi::call::{call0, call1, getattr, guard, in_context, method};
use crate::capi::error::{fetch, raise, raise_errno, raise_io, take_exception, take_unless_fatal};
use crate::capi::imports::{imports, support};
use crate::capi::types::{Attribute, TypeSpec};
use crate::capi::{Fatal, Raised, Ref, Slot};
use crate::event_loop::core::{Core, core_of};
use crate::event_loop::source::{Kind, Source, SourceRef};
use crate::event_loop::watch::complete;
use crate::reactor::{Interest, Readiness, Token};

/// Above this many unsent bytes the protocol is asked to pause, as in asyncio.
const HIGH_WATER: usize = 64 * 1024;

/// How the protocol wants its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// `data_received(bytes)`.
    Data,
    /// `get_buffer(sizehint)` and `buffer_updated(nbytes)`.
    Buffer,
}

/// The fields behind the base class.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) event_loop: Slot,
    pub(crate) protocol: Slot,
    /// The protocol's bound `data_received` or `get_buffer`, and `buffer_updated`.
    pub(crate) receiver: Slot,
    pub(crate) updated: Slot,
    pub(crate) context: Slot,
    /// The Python socket. An accepted connection has none until somebody asks for it.
    pub(crate) socket: Slot,
    pub(crate) extra: Slot,
    server: Slot,
    waiter: Slot,
    pub(crate) empty_waiter: Slot,
    /// What `connection_lost` will be called with.
    lost_with: Slot,
    /// The name of our end, where the listener knows it without asking.
    sockname: Slot,
    peer: Cell<Option<SocketAddr>>,
    pub(crate) buffer: UnsafeCell<WriteBuffer>,
    pub(crate) high: Cell<usize>,
    pub(crate) low: Cell<usize>,
    pub(crate) fd: Cell<RawFd>,
    pub(crate) token: Cell<Token>,
    pub(crate) conn_lost: Cell<u32>,
    pub(crate) delivery: Cell<Delivery>,
    pub(crate) closing: Cell<bool>,
    pub(crate) paused: Cell<bool>,
    pub(crate) started: Cell<bool>,
    /// The peer has closed its side and the protocol keeps ours open.
    pub(crate) read_done: Cell<bool>,
    /// write_eof() was called.
    pub(crate) eof: Cell<bool>,
    pub(crate) protocol_paused: Cell<bool>,
    /// Waits for the end of the turn to be flushed.
    pub(crate) queued: Cell<bool>,
    /// The socket was full at the last send; an edge will tell.
    pub(crate) blocked: Cell<bool>,
    /// The last message was large: the next receive goes straight into a bytes object.
    pub(crate) large: Cell<bool>,
    weaklist: Cell<*mut ffi::PyObject>,
    dict: Slot,
}

/// What a transport is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) fd: RawFd,
    pub(crate) socket: Option<Ref>,
    pub(crate) protocol: Ref,
    pub(crate) context: Ref,
    pub(crate) waiter: Option<Ref>,
    pub(crate) extra: Option<Ref>,
    pub(crate) server: Option<Ref>,
    pub(crate) sockname: Option<Ref>,
    pub(crate) peer: Option<SocketAddr>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());
/// Where [`Stream`] begins in the object: the size of asyncio's base class.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// `Server._attach` and `_detach` take the transport (3.13) or nothing.
static SERVER_TAKES_TRANSPORT: AtomicBool = AtomicBool::new(false);

/// The fields of a transport.
///
/// # Safety
/// `object` is a stream transport and outlives the result.
#[inline(always)]
pub(crate) unsafe fn stream_of<'a>(object: *mut ffi::PyObject) -> &'a Stream {
    // SAFETY: the caller's word. Relaxed: the offset is stored once, at import.
    unsafe { &*object.cast::<u8>().add(BASE.load(Ordering::Relaxed)).cast::<Stream>() }
}

impl Stream {
    /// Makes a transport and queues its start. On failure the descriptor stays the caller's.
    pub(crate) fn create(core: &Core, parts: Parts) -> Result<Ref, Raised> {
        core.check_process()?;
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
                protocol: Slot::empty(),
                receiver: Slot::empty(),
                updated: Slot::empty(),
                context: Slot::new(Some(parts.context)),
                socket: Slot::empty(),
                extra: Slot::new(parts.extra),
                server: Slot::empty(),
                waiter: Slot::new(parts.waiter),
                empty_waiter: Slot::empty(),
                lost_with: Slot::empty(),
                sockname: Slot::new(parts.sockname),
                peer: Cell::new(parts.peer),
                buffer: UnsafeCell::default(),
                high: Cell::new(HIGH_WATER),
                low: Cell::new(HIGH_WATER / 4),
                fd: Cell::new(-1),
                token: Cell::new(Token(0)),
                conn_lost: Cell::new(0),
                delivery: Cell::new(Delivery::Data),
                closing: Cell::new(false),
                paused: Cell::new(false),
                started: Cell::new(false),
                read_done: Cell::new(false),
                eof: Cell::new(false),
                protocol_paused: Cell::new(false),
                queued: Cell::new(false),
                blocked: Cell::new(false),
                large: Cell::new(false),
                weaklist: Cell::new(null_mut()),
                dict: Slot::empty(),
            });
            Ref::from_owned(object).ok_or(Raised)?
        };
        // SAFETY: just made.
        let stream = unsafe { stream_of(object.as_ptr()) };
        stream.set_protocol(parts.protocol)?;
        if let Some(server) = parts.server {
            tell_server(&server, imports()._attach.as_ptr(), &object)?;
            stream.server.set(Some(server));
        }
        core.touched.set(true);
        // From here on the transport owns the descriptor.
        stream.socket.set(parts.socket);
        stream.fd.set(parts.fd);
        let source = Kind::Source(SourceRef::new::<Transport>(object.clone_ref()));
        stream.token.set(core.fds.insert(parts.fd, source));
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

    pub(crate) fn is_reading(&self) -> bool {
        !self.closing.get() && !self.paused.get()
    }

    /// Caches the protocol's methods: looking them up costs more than many a protocol does per message.
    pub(crate) fn set_protocol(&self, protocol: Ref) -> Result<(), Raised> {
        let names = imports();
        // SAFETY: live objects; -1 with an error set means failure.
        let buffered =
            unsafe { ffi::PyObject_IsInstance(protocol.as_ptr(), names.buffered_protocol.as_ptr()) };
        let (delivery, receiver) = match buffered {
            0 => (Delivery::Data, &names.data_received),
            1 => (Delivery::Buffer, &names.get_buffer),
            _ => return Err(Raised),
        };
        // A protocol without the method is an error when data arrives, not before, as in asyncio.
        let receiver = optional(getattr(protocol.as_ptr(), receiver.as_ptr()))?;
        let updated = match delivery {
            Delivery::Data => None,
            Delivery::Buffer => optional(getattr(protocol.as_ptr(), names.buffer_updated.as_ptr()))?,
        };
        self.delivery.set(delivery);
        self.receiver.set(receiver);
        self.updated.set(updated);
        self.protocol.set(Some(protocol));
        Ok(())
    }

    /// Runs `body` in the connection's context.
    pub(crate) fn in_context<T>(&self, body: impl FnOnce() -> Result<T, Raised>) -> Result<T, Raised> {
        match self.context.get() {
            Some(context) => in_context(&context, body),
            None => body(),
        }
    }

    /// Queues `connection_lost(exception)`, once.
    pub(crate) fn lose(&self, object: &Ref, exception: Option<Ref>) {
        self.conn_lost.set(self.conn_lost.get() + 1);
        self.lost_with.set(exception);
        self.core().call_native(object.clone_ref(), connection_lost);
    }

    /// asyncio's `_force_close`: what is unsent is dropped.
    pub(crate) fn force_close(&self, object: &Ref, exception: Option<Ref>) {
        if self.conn_lost.get() > 0 || self.fd.get() < 0 {
            return;
        }
        let unsent = self.buffer().take();
        drop(unsent);
        self.closing.set(true);
        self.lose(object, exception);
    }

    /// asyncio's `_fatal_error`, with the error that is set: connection trouble is logged in debug mode
    /// only, anything else goes to the exception handler. The connection is lost either way.
    #[cold]
    pub(crate) fn fatal_error(&self, object: &Ref, raised: Raised, message: &str) -> Result<(), Fatal> {
        let Raised = raised;
        let exception = take_unless_fatal()?;
        // SAFETY: every caller holds the GIL.
        let py = unsafe { Python::assume_attached() };
        let message = pyo3::types::PyString::new(py, message);
        let core = self.core();
        let protocol = self.protocol.get().unwrap_or_else(Ref::none);
        let told = core.support(
            "fatal_error",
            &[core.object(), object.as_ptr(), protocol.as_ptr(), exception.as_ptr(), message.as_ptr()],
        );
        self.force_close(object, Some(exception));
        told
    }

    /// The Python socket, made now if nobody needed it before.
    pub(crate) fn python_socket(&self, py: Python<'_>) -> PyResult<Option<Ref>> {
        if let Some(socket) = self.socket.get() {
            return Ok(Some(socket));
        }
        if self.fd.get() < 0 {
            return Ok(None);
        }
        let socket = Ref::from(support(py, "adopt_socket")?.call1((self.fd.get(),))?);
        self.socket.set(Some(socket.clone_ref()));
        Ok(Some(socket))
    }

    /// The dict of extra information with everything in it that asyncio puts there.
    pub(crate) fn full_extra<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let extra = match self.extra.get() {
            Some(extra) => extra.bind(py).clone().cast_into::<PyDict>()?,
            None => PyDict::new(py),
        };
        self.extra.set(Some(extra.clone().into_any().into()));
        if !extra.contains("socket")?
            && let Some(socket) = self.python_socket(py)?
        {
            let shown = call1(&imports().transport_socket, socket.as_ptr()).map_err(|Raised| fetch(py))?;
            extra.set_item("socket", shown.bind(py))?;
        }
        for name in ["sockname", "peername"] {
            if !extra.contains(name)? {
                extra.set_item(name, self.address(py, name)?)?;
            }
        }
        Ok(extra)
    }

    /// `sockname` or `peername`, or `None` where the socket has none.
    fn address<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        if name == "sockname"
            && let Some(known) = self.sockname.get()
        {
            return Ok(known.bind(py).clone());
        }
        if name == "peername"
            && let Some(peer) = self.peer.get()
        {
            return super::address::to_python(py, &peer);
        }
        let Some(socket) = self.python_socket(py)? else { return Ok(py.None().into_bound(py)) };
        let function = if name == "sockname" { "getsockname" } else { "getpeername" };
        match socket.bind(py).call_method0(function) {
            Ok(address) => Ok(address),
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyOSError>(py) => {
                Ok(py.None().into_bound(py))
            }
            Err(error) => Err(error),
        }
    }

    /// `get_extra_info(name)` for one name, computing no more than that.
    pub(crate) fn extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if let Some(extra) = self.extra.get() {
            let extra = extra.bind(py).clone().cast_into::<PyDict>()?;
            if let Some(value) = extra.get_item(name)? {
                return Ok(Some(value));
            }
        }
        // What no dict takes as a key is an error, as it is for asyncio's dict.
        name.hash()?;
        let text = match name.extract::<std::borrow::Cow<'_, str>>() {
            Ok(text) => text,
            Err(_) => return Ok(None),
        };
        match text.as_ref() {
            "socket" | "sockname" | "peername" => self.full_extra_item(py, &text),
            _ => Ok(None),
        }
    }

    fn full_extra_item<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let extra = match self.extra.get() {
            Some(extra) => extra.bind(py).clone().cast_into::<PyDict>()?,
            None => {
                let extra = PyDict::new(py);
                self.extra.set(Some(extra.clone().into_any().into()));
                extra
            }
        };
        let value = if name == "socket" {
            let Some(socket) = self.python_socket(py)? else { return Ok(None) };
            call1(&imports().transport_socket, socket.as_ptr()).map_err(|Raised| fetch(py))?.bind(py).clone()
        } else {
            self.address(py, name)?
        };
        extra.set_item(name, &value)?;
        Ok(Some(value))
    }

    /// Closes the descriptor, through its Python socket if it has one.
    fn close_descriptor(&self) -> Result<(), Raised> {
        let fd = self.fd.replace(-1);
        let socket = self.socket.take();
        if fd >= 0 {
            let core = self.core();
            // Only our own entry: the number may have a new owner already.
            if core.fds.token(fd) == self.token.get() {
                drop(core.fds.remove(fd));
            }
        }
        match socket {
            Some(socket) => method(&socket, imports().close.as_ptr(), &[]).map(drop),
            None if fd >= 0 => {
                // SAFETY: the transport owned this descriptor and has forgotten it.
                unsafe { libc::close(fd) };
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// # Safety
    /// Called by the collector with its own visitor.
    unsafe fn traverse(&self, visit: ffi::visitproc, argument: *mut c_void) -> c_int {
        for slot in [
            &self.event_loop,
            &self.protocol,
            &self.receiver,
            &self.updated,
            &self.context,
            &self.socket,
            &self.extra,
            &self.server,
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
        0
    }
}

/// An attribute that may be missing; any other error stays one.
fn optional(found: Result<Ref, Raised>) -> Result<Option<Ref>, Raised> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(Raised) => {
            // SAFETY: an error is set; only AttributeError is cleared.
            unsafe {
                if ffi::PyErr_ExceptionMatches(ffi::PyExc_AttributeError) == 0 {
                    return Err(Raised);
                }
                ffi::PyErr_Clear();
            }
            Ok(None)
        }
    }
}

fn tell_server(server: &Ref, name: *mut ffi::PyObject, transport: &Ref) -> Result<(), Raised> {
    // Relaxed: stored once, at import.
    if SERVER_TAKES_TRANSPORT.load(Ordering::Relaxed) {
        method(server, name, &[transport.as_ptr()]).map(drop)
    } else {
        method(server, name, &[]).map(drop)
    }
}

/// The first step: `connection_made`, then reading, then whoever waits for the connection.
fn start(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with a transport.
    let stream = unsafe { stream_of(object.as_ptr()) };
    if let Some(protocol) = stream.protocol.get() {
        let made = getattr(protocol.as_ptr(), imports().connection_made.as_ptr());
        let outcome = match made {
            Ok(made) => {
                let outcome = stream.in_context(|| call1(&made, object.as_ptr()));
                outcome.map(drop).or_else(|raised| report(stream, core, &made, Some(object), raised))
            }
            Err(raised) => core.unraisable(raised),
        };
        outcome?;
    }
    stream.started.set(true);
    if stream.conn_lost.get() == 0
        && let Err(error) = register(stream, core)
    {
        stream.fatal_error(object, raise_io(&error), "Fatal error on transport")?;
    }
    match stream.waiter.take() {
        Some(waiter) => complete(core, &waiter),
        None => Ok(()),
    }
}

/// asyncio's words for a callback that failed, with the callback named.
#[cold]
fn report(
    stream: &Stream,
    core: &Core,
    callback: &Ref,
    argument: Option<&Ref>,
    raised: Raised,
) -> Result<(), Fatal> {
    let context = stream.context.get().unwrap_or_else(Ref::none);
    core.report_call(callback, argument, &context, raised)
}

fn register(stream: &Stream, core: &Core) -> std::io::Result<()> {
    let Some(poller) = core.poller() else { return Ok(()) };
    let (fd, token) = (stream.fd.get(), stream.token.get());
    match poller.register_edge(fd, token, Interest::BOTH) {
        // The descriptor is known from a `sock_connect` that waited on it.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            poller.reregister_edge(fd, token, Interest::BOTH)
        }
        other => other,
    }
}

/// The last step.
pub(crate) fn connection_lost(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with a transport.
    let stream = unsafe { stream_of(object.as_ptr()) };
    let exception = stream.lost_with.take().unwrap_or_else(Ref::none);
    let mut outcome = Ok(());
    if let Some(protocol) = stream.protocol.get() {
        outcome = match getattr(protocol.as_ptr(), imports().connection_lost.as_ptr()) {
            Ok(lost) => stream
                .in_context(|| call1(&lost, exception.as_ptr()))
                .map(drop)
                .or_else(|raised| report(stream, core, &lost, Some(&exception), raised)),
            Err(raised) => core.unraisable(raised),
        };
    }
    // A fatal error waits until the connection is cleaned up.
    let fatal = outcome.is_err().then(take_exception);
    let closed = stream.close_descriptor().or_else(|raised| core.unraisable(raised));
    stream.protocol.clear();
    stream.receiver.clear();
    stream.updated.clear();
    let detached = match stream.server.take() {
        Some(server) => {
            tell_server(&server, imports()._detach.as_ptr(), object).or_else(|raised| core.unraisable(raised))
        }
        None => Ok(()),
    };
    if let Some(waiter) = stream.empty_waiter.get() {
        super::send::fail_empty_waiter(core, &waiter)?;
    }
    stream.context.clear();
    if let Some(exception) = fatal {
        raise(exception);
        return Err(Fatal);
    }
    closed.and(detached)
}

/// What a token of ours leads to.
#[derive(Debug)]
pub(crate) struct Transport;

impl Source for Transport {
    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        // SAFETY: the source was registered with a transport.
        let stream = unsafe { stream_of(object.as_ptr()) };
        if stream.blocked.get()
            && readiness.intersects(Readiness::WRITABLE | Readiness::ERROR | Readiness::WRITE_CLOSED)
        {
            super::send::flush(object, core)?;
        }
        if readiness.intersects(
            Readiness::READABLE | Readiness::READ_CLOSED | Readiness::WRITE_CLOSED | Readiness::ERROR,
        ) {
            super::receive::on_readable(object, stream, core, readiness)?;
        }
        Ok(())
    }
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for a transport without references.
    unsafe {
        if ffi::PyObject_CallFinalizerFromDealloc(object) < 0 {
            return;
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        let stream = std::ptr::from_ref(stream_of(object)).cast_mut();
        if !(*stream).weaklist.get().is_null() {
            ffi::PyObject_ClearWeakRefs(object);
        }
        std::ptr::drop_in_place(stream);
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}

/// asyncio's `__del__`: a transport that nobody closed is closed here, with a ResourceWarning.
unsafe extern "C" fn finalize(object: *mut ffi::PyObject) {
    let _ = guard(|| {
        // SAFETY: a transport that is about to die; an error that is set is kept across the warning.
        unsafe {
            let stream = stream_of(object);
            if stream.fd.get() < 0 {
                return 0;
            }
            let pending = (!ffi::PyErr_Occurred().is_null()).then(take_exception);
            let held = Ref::from_borrowed(object);
            let core = stream.core();
            let told = core.support("unclosed_transport", &[held.as_ptr()]);
            if told.is_err() {
                ffi::PyErr_WriteUnraisable(object);
            }
            let server = stream.server.take();
            let closed = stream.close_descriptor().and_then(|()| match server {
                Some(server) => tell_server(&server, imports()._detach.as_ptr(), &held),
                None => Ok(()),
            });
            if closed.is_err() {
                ffi::PyErr_WriteUnraisable(object);
            }
            if let Some(exception) = pending {
                raise(exception);
            }
        }
        0
    });
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the collector's call for one of our transports; a heap type is visited by its instances.
    unsafe {
        let result = visit(ffi::Py_TYPE(object).cast(), argument);
        if result != 0 { result } else { stream_of(object).traverse(visit, argument) }
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector's call for one of our transports. The loop stays: methods need it, and the
    // loop's own clear breaks the cycle.
    let stream = unsafe { stream_of(object) };
    for slot in [
        &stream.protocol,
        &stream.receiver,
        &stream.updated,
        &stream.context,
        &stream.extra,
        &stream.server,
        &stream.waiter,
        &stream.empty_waiter,
        &stream.lost_with,
        &stream.dict,
    ] {
        slot.clear();
    }
    0
}

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: a live transport; repr holds the GIL.
        let (stream, py) = unsafe { (stream_of(object), Python::assume_attached()) };
        let mut text = String::from("<wakeloop.StreamTransport");
        if stream.fd.get() < 0 {
            text.push_str(" closed");
        } else if stream.closing.get() {
            text.push_str(" closing");
        }
        if stream.fd.get() >= 0 {
            let read = if stream.is_reading() && stream.started.get() { "polling" } else { "idle" };
            let write = if stream.blocked.get() { "polling" } else { "idle" };
            let size = stream.buffer().len();
            text.push_str(&format!(" fd={} read={read} write=<{write}, bufsize={size}>", stream.fd.get()));
        }
        text.push('>');
        pyo3::types::PyString::new(py, &text).into_ptr()
    })
}

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let base = py.import("asyncio.transports")?.getattr("_FlowControlMixin")?;
    let base_type = base.clone().cast_into::<pyo3::types::PyType>()?;
    // SAFETY: a live type object.
    let base_size = unsafe { (*base_type.as_type_ptr()).tp_basicsize } as usize;
    let base_size = base_size.next_multiple_of(align_of::<Stream>());
    BASE.store(base_size, Ordering::Relaxed);
    let attach = py.import("asyncio.base_events")?.getattr("Server")?.getattr("_attach")?;
    let takes: usize = attach.getattr("__code__")?.getattr("co_argcount")?.extract()?;
    SERVER_TAKES_TRANSPORT.store(takes > 1, Ordering::Relaxed);

    let mut attributes: Vec<Attribute> = super::methods::attributes();
    attributes.push(Attribute {
        name: c"__dict__",
        get: ffi::PyObject_GenericGetDict,
        set: Some(ffi::PyObject_GenericSetDict),
    });
    let spec = TypeSpec {
        name: c"wakeloop._core.StreamTransport",
        size: base_size + size_of::<Stream>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION,
        methods: super::methods::METHODS,
        attributes: &attributes,
        weaklist_offset: Some(base_size + offset_of!(Stream, weaklist)),
        dict_offset: Some(base_size + offset_of!(Stream, dict)),
        slots: &[
            (ffi::Py_tp_dealloc, dealloc as *mut c_void),
            (ffi::Py_tp_finalize, finalize as *mut c_void),
            (ffi::Py_tp_traverse, traverse as *mut c_void),
            (ffi::Py_tp_clear, clear as *mut c_void),
            (ffi::Py_tp_repr, repr as *mut c_void),
        ],
        bases: Some(PyTuple::new(py, [base])?),
    };
    let kind = spec.build(py)?;
    // Relaxed: published under the GIL.
    TYPE.store(kind, Ordering::Relaxed);
    // SAFETY: the type was just made and lives for ever.
    Ok(unsafe { Bound::from_borrowed_ptr(py, kind.cast()) })
}

/// `_make_socket_transport`'s native half.
#[pyfunction]
#[pyo3(signature = (event_loop, sock, protocol, waiter, extra, server))]
pub(crate) fn make_stream<'py>(
    py: Python<'py>,
    event_loop: &Bound<'py, crate::event_loop::event_loop::EventLoop>,
    sock: Bound<'py, PyAny>,
    protocol: Bound<'py, PyAny>,
    waiter: Option<Bound<'py, PyAny>>,
    extra: Option<Bound<'py, PyDict>>,
    server: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let core = event_loop.get().core();
    let fd: RawFd = sock.call_method0("fileno")?.extract()?;
    if fd < 0 {
        return Err(restored(py, raise_errno(libc::EBADF)));
    }
    let context = crate::capi::call::copy_current_context().map_err(|Raised| fetch(py))?;
    let transport = Stream::create(
        core,
        Parts {
            fd,
            socket: Some(sock.into()),
            protocol: protocol.into(),
            context,
            waiter: waiter.map(Ref::from),
            // The caller's dict is not ours to fill.
            extra: extra.map(|extra| extra.copy()).transpose()?.map(|extra| extra.into_any().into()),
            server: server.map(Ref::from),
            sockname: None,
            peer: None,
        },
    );
    match transport {
        Ok(transport) => Ok(transport.bind(py).clone()),
        Err(Raised) => Err(fetch(py)),
    }
}

fn restored(py: Python<'_>, raised: Raised) -> PyErr {
    let Raised = raised;
    fetch(py)
}

/// Calls a function of no arguments in the connection's context.
pub(crate) fn call_in_context(stream: &Stream, function: &Ref) -> Result<Ref, Raised> {
    stream.in_context(|| call0(function))
}
