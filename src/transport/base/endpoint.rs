//! What datagram and pipe transports have in common: a descriptor of Python's, a life, and flow control.
//!
//! Each of them is a raw heap type with [`Endpoint`] among its fields, made by
//! [`make_type`](super::object::make_type); what differs is its [`Variant`].
//!
//! **Life.** Made around a Python object that owns the descriptor (a socket or a file). A queued step calls
//! `connection_made` and begins to watch. Closing stops the reading, lets what is pending go out and queues
//! a step that calls `connection_lost`, closes the Python object and lets everything go. `ending` is true
//! from that moment on and makes it happen once.
//!
//! **Watching** is [`super::watching`]'s.
//!
//! **Order.** What was ready before the poll runs before what the poll found, as in asyncio: an event that
//! comes while callbacks wait is put behind them. (A datagram may have been there before the callback that
//! is going to wait for it.)
//!
//! **Contexts.** Callbacks of the protocol run in the context in which the transport was made.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::flow_control::Marks;
use super::watching::{watch, watch_or_fail};
use crate::capi::call::{call0, copy_current_context, getattr, in_kept_context, method};
use crate::capi::error::{Outcome, fetch, raise, raise_errno, raise_io, take_exception, take_unless_fatal};
use crate::capi::fallible::string_or_none;
use crate::capi::file;
use crate::capi::imports::imports;
use crate::capi::{Fallible, Fatal, Raised, Ref, Slot};
use crate::event_loop::completion::complete;
use crate::event_loop::core::{Core, core_of};
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::source::Source;
use crate::reactor::{Interest, Readiness, Token};

/// After so many writes to a lost connection asyncio begins to warn.
const WARN_AFTER: u32 = 5;

/// The fields that every variant has.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) event_loop: Slot,
    pub(crate) protocol: Slot,
    pub(crate) context: Slot,
    /// The Python object that owns the descriptor: a socket, or a file.
    pub(crate) owner: Slot,
    /// The dict behind `get_extra_info`.
    pub(crate) extra: Slot,
    pub(crate) waiter: Slot,
    /// What `connection_lost` will be called with.
    pub(crate) lost_with: Slot,
    pub(crate) marks: Marks,
    pub(crate) fd: Cell<RawFd>,
    pub(crate) token: Cell<Token>,
    pub(crate) watched: Cell<Option<Interest>>,
    /// An event that waits for its place in the turn.
    waiting: Cell<Readiness>,
    /// Inside of `act`: what comes in a loop that runs there waits until it returns.
    acting: Cell<bool>,
    /// asyncio's counter: above 0 the connection is lost, and writes to it are counted.
    pub(crate) conn_lost: Cell<u32>,
    pub(crate) started: Cell<bool>,
    pub(crate) closing: Cell<bool>,
    /// `connection_lost` is queued or was called.
    pub(crate) ending: Cell<bool>,
    pub(crate) paused: Cell<bool>,
    /// The number of the turn in which reading was resumed last.
    resumed_in: Cell<u64>,
    pub(crate) protocol_paused: Cell<bool>,
    pub(crate) weaklist: Cell<*mut ffi::PyObject>,
    pub(crate) dict: Slot,
}

/// What an endpoint is made of. The context is the current one.
#[derive(Debug)]
pub(crate) struct Parts {
    owner: Ref,
    fd: RawFd,
    protocol: Ref,
    waiter: Option<Ref>,
    extra: Ref,
}

impl Parts {
    /// `owner` has a `fileno()`; `extra` is complete and the transport's own.
    pub(crate) fn new(
        owner: Bound<'_, PyAny>,
        protocol: Bound<'_, PyAny>,
        waiter: Option<Bound<'_, PyAny>>,
        extra: Bound<'_, PyDict>,
    ) -> PyResult<Parts> {
        let fd: RawFd = owner.call_method0(Fallible("fileno"))?.extract()?;
        if fd < 0 {
            let Raised = raise_errno(libc::EBADF);
            return Err(fetch(owner.py()));
        }
        Ok(Parts {
            fd,
            owner: owner.into(),
            protocol: protocol.into(),
            waiter: waiter.map(Ref::from),
            extra: extra.into_any().into(),
        })
    }

    /// Where Python keeps the descriptor.
    pub(crate) fn keeper(&self, py: Python<'_>) -> Option<Ref> {
        file::keeper(&self.owner.bind(py), self.fd)
    }
}

/// A kind of endpoint. The type that implements it is the object's fields behind asyncio's base class.
pub(crate) trait Variant: Source + Sized + 'static {
    /// The type's name in Python, with its module.
    const NAME: &'static CStr;
    /// The names of its base classes in `asyncio.transports`.
    const BASES: &'static [&'static str];
    /// What asyncio calls the owner of the descriptor, and the descriptor.
    const OWNER: (&'static CStr, &'static CStr);
    /// Where [`Endpoint`] lies among the fields.
    const ENDPOINT: usize;
    /// A function of `wakeloop._support` that tells of an error which ends the transport.
    const TELL_FATAL: &'static str = "fatal_error";
    /// Does its end count as a first write that was lost? In asyncio, that of a pipe does not.
    const END_COUNTS: bool = true;

    /// Where the type is kept.
    fn kind() -> &'static AtomicPtr<ffi::PyTypeObject>;
    fn endpoint(&self) -> &Endpoint;
    /// The descriptor is ready. As [`Source::on_ready`], in its place in the turn.
    fn act(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal>;
    /// Its descriptor, or -1 if it is known to have been closed behind the endpoint's back.
    fn descriptor(&self) -> RawFd {
        self.endpoint().fd.get()
    }
    /// What the poller should report as things stand; asked once the endpoint has started.
    fn interest(&self) -> Option<Interest>;
    /// Sends what was gathered in this turn, on behalf of a caller in Python: asyncio would have done that at
    /// once. Only a fatal error is the caller's.
    fn send_gathered(&self, _object: &Ref) -> Result<(), Raised> {
        Ok(())
    }
    /// Bytes that wait for the descriptor to take them.
    fn unsent(&self) -> usize {
        0
    }
    /// Forgets them.
    fn drop_unsent(&self) {}
    /// resume_reading() was called: what was held back meanwhile is due.
    fn resumed(&self, _core: &Core) {}
    /// The slots of its own, for the collector.
    fn each_slot(&self, _each: &mut dyn FnMut(&Slot)) {}
    /// What `repr` says of an open endpoint after its descriptor.
    fn describe(&self, text: &mut String);
}

/// Where the fields begin in every object: behind asyncio's largest base class.
pub(crate) static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// The fields of an endpoint.
///
/// # Safety
/// `object` is an endpoint of this variant and outlives the result.
#[inline(always)]
pub(crate) unsafe fn fields<'a, T: Variant>(object: *mut ffi::PyObject) -> &'a T {
    // SAFETY: the caller's word. Relaxed: the offset is stored once, at import.
    unsafe { &*object.cast::<u8>().add(OFFSET.load(Ordering::Relaxed)).cast::<T>() }
}

/// The object that these fields are part of.
fn object_of<T: Variant>(variant: &T) -> Ref {
    // Relaxed: as in `fields`.
    let offset = OFFSET.load(Ordering::Relaxed);
    let object = std::ptr::from_ref(variant).cast::<u8>().wrapping_sub(offset).cast_mut().cast();
    // SAFETY: `create` writes a variant to its place before anybody can ask, and it lies nowhere else.
    unsafe { Ref::from_borrowed(object) }
}

/// Makes an endpoint and queues its start. On failure the descriptor stays the caller's.
pub(crate) fn make<'py, T: Variant>(
    event_loop: &Bound<'py, EventLoop>,
    parts: Parts,
    variant: impl FnOnce(Endpoint) -> T,
) -> PyResult<Bound<'py, PyAny>> {
    match create(event_loop.get().core(), parts, variant) {
        Ok(transport) => Ok(transport.bind(event_loop.py()).clone()),
        Err(Raised) => Err(fetch(event_loop.py())),
    }
}

fn create<T: Variant>(core: &Core, parts: Parts, make: impl FnOnce(Endpoint) -> T) -> Result<Ref, Raised> {
    core.check_process()?;
    core.check_usable()?;
    // It is called later; one that is no protocol is refused now, as in asyncio.
    drop(getattr(parts.protocol.as_ptr(), imports().connection_made.as_ptr())?);
    let context = copy_current_context()?;
    // SAFETY: fresh, zeroed memory of the type; every field of ours is written before anyone sees it, and
    // zeroed slots of asyncio's base are empty.
    let object = unsafe {
        let object = ffi::PyType_GenericAlloc(T::kind().load(Ordering::Relaxed), 0);
        if object.is_null() {
            return Err(Raised);
        }
        let place = object.cast::<u8>().add(OFFSET.load(Ordering::Relaxed)).cast::<T>();
        place.write(make(Endpoint {
            event_loop: Slot::new(Some(core.this())),
            protocol: Slot::new(Some(parts.protocol)),
            context: Slot::new(Some(context)),
            owner: Slot::empty(),
            extra: Slot::new(Some(parts.extra)),
            waiter: Slot::new(parts.waiter),
            lost_with: Slot::empty(),
            marks: Marks::new(),
            fd: Cell::new(-1),
            token: Cell::new(Token(0)),
            watched: Cell::new(None),
            waiting: Cell::new(Readiness::EMPTY),
            acting: Cell::new(false),
            conn_lost: Cell::new(0),
            started: Cell::new(false),
            closing: Cell::new(false),
            ending: Cell::new(false),
            paused: Cell::new(false),
            resumed_in: Cell::new(0),
            protocol_paused: Cell::new(false),
            weaklist: Cell::new(null_mut()),
            dict: Slot::empty(),
        }));
        Ref::from_owned(object).ok_or(Raised)?
    };
    // SAFETY: just made.
    let endpoint = unsafe { fields::<T>(object.as_ptr()) }.endpoint();
    core.note_io();
    let token = core.insert_source::<T>(parts.fd, object.clone_ref()).map_err(|error| raise_io(&error))?;
    endpoint.token.set(token);
    // From here on the endpoint owns the descriptor.
    endpoint.owner.set(Some(parts.owner));
    endpoint.fd.set(parts.fd);
    core.call_native(object.clone_ref(), start::<T>);
    Ok(object)
}

impl Endpoint {
    #[inline(always)]
    pub(crate) fn core(&self) -> &Core {
        // SAFETY: `create` put one of our loops there, and it stays until dealloc.
        unsafe { core_of(self.event_loop.as_ptr()) }
    }

    pub(crate) fn is_reading(&self) -> bool {
        !self.closing.get() && !self.paused.get()
    }

    /// Reading begins again with what the next poll tells, as in asyncio, whose pause has taken back what this turn's
    /// poll told.
    pub(crate) fn resume(&self) {
        let core = self.core();
        self.resumed_in.set(core.counters.turns.get());
        core.note_io();
    }

    /// Is it time to read?
    #[inline(always)]
    pub(crate) fn reads_now(&self, core: &Core) -> bool {
        self.is_reading() && self.resumed_in.get() != core.counters.turns.get()
    }

    /// Runs `body` in the endpoint's context.
    #[inline(always)]
    pub(crate) fn in_context<T>(&self, body: impl FnOnce() -> Result<T, Raised>) -> Result<T, Raised> {
        match self.context.get() {
            Some(context) => in_kept_context(&context, body),
            None => body(),
        }
    }

    /// A write to a connection that is gone: silent at first, then with asyncio's warning.
    #[cold]
    pub(crate) fn write_to_lost(&self, warning: &str) -> Result<(), Raised> {
        if self.conn_lost.get() >= WARN_AFTER {
            self.core().support(warning, &[]).map_err(|Fatal| Raised)?;
        }
        self.count_lost();
        Ok(())
    }

    /// A write that went nowhere.
    pub(crate) fn count_lost(&self) {
        self.conn_lost.set(self.conn_lost.get().saturating_add(1));
    }
}

/// Who calls a method of the protocol in asyncio, which is what its failure is told as: the words that people's log
/// filters know.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller {
    /// The loop, as a callback.
    Loop,
    /// The transport, when it reads.
    Reading,
    /// The transport, when the socket has room for what waits.
    Sending,
    /// The transport, in its last step, which has the method's argument.
    Ending,
}

/// Calls a method of the protocol from the loop, in the endpoint's context. What it raises goes to the exception handler,
/// and the endpoint lives on.
#[inline(always)]
pub(crate) fn tell<T: Variant>(
    variant: &T,
    core: &Core,
    caller: Caller,
    name: *mut ffi::PyObject,
    arguments: &[*mut ffi::PyObject],
) -> Result<(), Fatal> {
    let endpoint = variant.endpoint();
    let Some(protocol) = endpoint.protocol.get() else { return Ok(()) };
    match endpoint.in_context(|| method(&protocol, name, arguments)) {
        Ok(_) => Ok(()),
        Err(raised) => report(variant, core, caller, (&protocol, name), arguments, raised),
    }
}

/// asyncio's words for a call of the protocol that failed.
#[cold]
pub(crate) fn report<T: Variant>(
    variant: &T,
    core: &Core,
    caller: Caller,
    (protocol, name): (&Ref, *mut ffi::PyObject),
    arguments: &[*mut ffi::PyObject],
    raised: Raised,
) -> Result<(), Fatal> {
    let context = variant.endpoint().context.get().unwrap_or_else(Ref::none);
    // SAFETY: the caller's arguments, alive for the call.
    let first = arguments.first().map(|argument| unsafe { Ref::from_borrowed(*argument) });
    let (step, argument) = match caller {
        Caller::Loop => return report_callback(core, protocol, name, first.as_ref(), &context, raised),
        Caller::Reading => ("_read_ready", None),
        Caller::Sending => ("_sendto_ready", None),
        Caller::Ending => ("_call_connection_lost", first.as_ref()),
    };
    core.report_step(&object_of(variant), step, argument, &context, raised)
}

/// As a callback, with the callback named.
fn report_callback(
    core: &Core,
    protocol: &Ref,
    name: *mut ffi::PyObject,
    argument: Option<&Ref>,
    context: &Ref,
    raised: Raised,
) -> Result<(), Fatal> {
    let Raised = raised;
    let exception = take_unless_fatal()?;
    let callback = getattr(protocol.as_ptr(), name).unwrap_or_else(|Raised| {
        drop(take_exception());
        protocol.clone_ref()
    });
    raise(exception);
    core.report_call(&callback, argument, context, Raised)
}

/// [`Source::on_ready`] of every variant: acts now, or, outside of a turn of ours, behind the callbacks that wait
/// already.
#[inline(always)]
pub(crate) fn on_ready<T: Variant>(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
    // SAFETY: the source was registered with an endpoint of this variant.
    let endpoint = unsafe { fields::<T>(object.as_ptr()) }.endpoint();
    if (core.ready.is_empty() || core.is_dispatching()) && !endpoint.acting.get() {
        return act::<T>(object, endpoint, core, readiness);
    }
    if endpoint.waiting.replace(endpoint.waiting.get() | readiness).is_empty() {
        core.call_native(object.clone_ref(), act_later::<T>);
    }
    Ok(())
}

fn act_later<T: Variant>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with an endpoint of this variant.
    let endpoint = unsafe { fields::<T>(object.as_ptr()) }.endpoint();
    if endpoint.acting.get() {
        // A loop runs inside of a callback of this very endpoint, which goes on when that returns.
        return Ok(());
    }
    let readiness = endpoint.waiting.replace(Readiness::EMPTY);
    // A callback in front of it may have closed the endpoint.
    if endpoint.fd.get() < 0 || readiness.is_empty() {
        return Ok(());
    }
    act::<T>(object, endpoint, core, readiness)
}

#[inline(always)]
fn act<T: Variant>(
    object: &Ref,
    endpoint: &Endpoint,
    core: &Core,
    readiness: Readiness,
) -> Result<(), Fatal> {
    /// Ends the acting, by a panic too.
    struct Acting<'a>(&'a Endpoint);

    impl Drop for Acting<'_> {
        #[inline(always)]
        fn drop(&mut self) {
            self.0.acting.set(false);
        }
    }

    endpoint.acting.set(true);
    let acting = Acting(endpoint);
    let outcome = T::act(object, core, readiness);
    drop(acting);
    if !endpoint.waiting.get().is_empty() {
        core.call_native(object.clone_ref(), act_later::<T>);
    }
    outcome
}

/// The first step: `connection_made`, then watching, then whoever waits for the connection. A fatal error in the first
/// leaves when the other two are done: the endpoint goes on in the next run.
fn start<T: Variant>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with an endpoint of this variant.
    let variant = unsafe { fields::<T>(object.as_ptr()) };
    let endpoint = variant.endpoint();
    let mut outcome = Outcome::default();
    outcome.note(tell(variant, core, Caller::Loop, imports().connection_made.as_ptr(), &[object.as_ptr()]));
    endpoint.started.set(true);
    outcome.note(watch_or_fail(object, variant, core));
    if let Some(waiter) = endpoint.waiter.take() {
        outcome.note(complete(core, &waiter));
    }
    outcome.finish()
}

/// Queues `connection_lost(exception)`, once.
pub(crate) fn lose<T: Variant>(object: &Ref, variant: &T, exception: Option<Ref>) {
    let endpoint = variant.endpoint();
    if endpoint.ending.replace(true) {
        return;
    }
    if T::END_COUNTS {
        endpoint.count_lost();
    }
    endpoint.lost_with.set(exception);
    endpoint.core().call_native(object.clone_ref(), connection_lost::<T>);
}

/// Ends the endpoint without sending what is pending.
pub(crate) fn force_close<T: Variant>(object: &Ref, variant: &T, exception: Option<Ref>) {
    let endpoint = variant.endpoint();
    if endpoint.ending.get() || endpoint.fd.get() < 0 {
        return;
    }
    variant.drop_unsent();
    endpoint.closing.set(true);
    // Only taking an interest back, which cannot fail in a way that anyone could act on.
    let _ = watch(object, variant, endpoint.core());
    lose(object, variant, exception);
}

/// A descriptor as its keeper tells it; without one, as asyncio's pipe transports have it.
#[inline(always)]
pub(crate) fn kept_descriptor(endpoint: &Endpoint, keeper: &Slot) -> RawFd {
    // SAFETY: pipes have keepers that `Parts` found, or none.
    if keeper.is_empty() { endpoint.fd.get() } else { unsafe { file::descriptor(keeper.as_ptr()) } }
}

/// [`Source::has_descriptor`] of every variant.
pub(crate) fn has_descriptor<T: Variant>(object: &Ref) -> bool {
    // SAFETY: the source was registered with an endpoint of this variant.
    let variant = unsafe { fields::<T>(object.as_ptr()) };
    variant.descriptor() == variant.endpoint().fd.get()
}

/// asyncio's `_fatal_error`, with the error that is set.
#[cold]
pub(crate) fn fatal_error<T: Variant>(
    object: &Ref,
    variant: &T,
    raised: Raised,
    message: &str,
) -> Result<(), Fatal> {
    end_with(object, variant, raised, message, T::TELL_FATAL)
}

/// The same with a function of `wakeloop._support` that tells of it.
pub(crate) fn end_with<T: Variant>(
    object: &Ref,
    variant: &T,
    raised: Raised,
    message: &str,
    tell: &str,
) -> Result<(), Fatal> {
    let Raised = raised;
    let exception = take_unless_fatal()?;
    let message = string_or_none(message);
    let endpoint = variant.endpoint();
    let core = endpoint.core();
    let protocol = endpoint.protocol.get().unwrap_or_else(Ref::none);
    let told = core.report(
        &exception,
        tell,
        &[core.object(), object.as_ptr(), protocol.as_ptr(), exception.as_ptr(), message.as_ptr()],
    );
    force_close(object, variant, Some(exception));
    told
}

/// The last step.
pub(crate) fn connection_lost<T: Variant>(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with an endpoint of this variant.
    let variant = unsafe { fields::<T>(object.as_ptr()) };
    let endpoint = variant.endpoint();
    let exception = endpoint.lost_with.take().unwrap_or_else(Ref::none);
    let told = tell(variant, core, Caller::Ending, imports().connection_lost.as_ptr(), &[exception.as_ptr()]);
    // A fatal error waits until the endpoint is cleaned up.
    let fatal = told.is_err().then(take_exception);
    let closed = release(object, variant).or_else(|raised| close_failed(object, core, raised));
    variant.drop_unsent();
    endpoint.protocol.clear();
    endpoint.context.clear();
    if let Some(exception) = fatal {
        raise(exception);
        return Err(Fatal);
    }
    closed
}

/// The descriptor could not be closed, with the error that is set.
#[cold]
pub(crate) fn close_failed(object: &Ref, core: &Core, raised: Raised) -> Result<(), Fatal> {
    let Raised = raised;
    let exception = take_unless_fatal()?;
    core.report(&exception, "close_failed", &[core.object(), object.as_ptr(), exception.as_ptr()])
}

/// Leaves the loop and closes the owner of the descriptor.
pub(crate) fn release<T: Variant>(object: &Ref, variant: &T) -> Result<(), Raised> {
    let endpoint = variant.endpoint();
    let core = endpoint.core();
    endpoint.started.set(false);
    // As in `force_close`.
    let _ = watch(object, variant, core);
    let fd = endpoint.fd.replace(-1);
    // Only our own entry: the number may have a new owner already.
    if fd >= 0 && core.fds.token(fd) == endpoint.token.get() {
        drop(core.fds.remove(fd));
    }
    match endpoint.owner.take() {
        Some(owner) => method(&owner, imports().close.as_ptr(), &[]).map(drop),
        None => Ok(()),
    }
}

/// Asks the protocol to pause if more than the high-water mark is unsent.
pub(crate) fn maybe_pause<T: Variant>(object: &Ref, variant: &T) -> Result<(), Raised> {
    let endpoint = variant.endpoint();
    if variant.unsent() <= endpoint.marks.high.get() || endpoint.protocol_paused.replace(true) {
        return Ok(());
    }
    // Called from a write, in the writer's own context.
    flow(object, endpoint, "protocol.pause_writing() failed", |protocol| {
        method(protocol, imports().pause_writing.as_ptr(), &[])
    })
    .map_err(|Fatal| Raised)
}

/// Tells the protocol to go on once no more than the low-water mark is unsent.
pub(crate) fn maybe_resume<T: Variant>(object: &Ref, variant: &T) -> Result<(), Fatal> {
    let endpoint = variant.endpoint();
    if !endpoint.protocol_paused.get() || variant.unsent() > endpoint.marks.low.get() {
        return Ok(());
    }
    endpoint.protocol_paused.set(false);
    flow(object, endpoint, "protocol.resume_writing() failed", |protocol| {
        let function = getattr(protocol.as_ptr(), imports().resume_writing.as_ptr())?;
        endpoint.in_context(|| call0(&function))
    })
}

/// A flow-control call; its errors go to the exception handler, in asyncio's words.
fn flow(
    object: &Ref,
    endpoint: &Endpoint,
    message: &str,
    call: impl FnOnce(&Ref) -> Result<Ref, Raised>,
) -> Result<(), Fatal> {
    let Some(protocol) = endpoint.protocol.get() else { return Ok(()) };
    let Err(Raised) = call(&protocol) else { return Ok(()) };
    let exception = take_unless_fatal()?;
    let core = endpoint.core();
    let message = string_or_none(message);
    core.report(
        &exception,
        "protocol_failed",
        &[core.object(), object.as_ptr(), protocol.as_ptr(), exception.as_ptr(), message.as_ptr()],
    )
}
