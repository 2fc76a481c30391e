//! The Python class of the native half of `wakeloop._net.tls.SSLProtocol`.
//!
//! It has attributes with the names of asyncio's SSLProtocol, whose code reads and writes them, and methods that
//! override asyncio's. Like the loop's native class, it must not define `__init__`.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};

use super::connection::{Connection, TlsState};
use super::engine::Engine;
use super::{choice, read, ssl_module, write};
use crate::capi::buffer::Buffer;
use crate::capi::call::call0;
use crate::capi::class::ClassSpec;
use crate::capi::error::{exception, exception_about};
use crate::capi::methods::{Attribute, Method, TypeSlot};
use crate::capi::{Arguments, Borrowed, Fallible, Fatal, Native, Raised, Ref, This};
use crate::event_loop::event_loop::EventLoop;
use crate::libssl::bio::Notify;
use crate::transport::attributes::{flag_attribute, mark_attribute, slot_attribute};
use crate::transport::base::protocol_sink::{NativeProtocol, set_native_protocol};
use crate::transport::stream::state::Stream;

/// asyncio's names of the states, in the order of [`TlsState`].
const NAMES: [(TlsState, &str); 5] = [
    (TlsState::Unwrapped, "UNWRAPPED"),
    (TlsState::Handshake, "DO_HANDSHAKE"),
    (TlsState::Wrapped, "WRAPPED"),
    (TlsState::Flushing, "FLUSHING"),
    (TlsState::Shutdown, "SHUTDOWN"),
];

/// The members of asyncio's `SSLProtocolState`, in the order of [`TlsState`].
fn states(py: Python<'_>) -> PyResult<&'static Vec<Py<PyAny>>> {
    static STATES: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();
    STATES.get_or_try_init(py, || {
        let states = py.import(Fallible("asyncio.sslproto"))?.getattr(Fallible("SSLProtocolState"))?;
        NAMES.iter().map(|(_, name)| states.getattr(Fallible(*name)).map(Bound::unbind)).collect()
    })
}

// -- methods -------------------------------------------------------------------------------------------

/// Calls asyncio's `__init__`, which creates the SSLObject, and chooses the engine.
fn begin(this: This<'_, Connection>, arguments: Arguments<'_>) -> PyResult<()> {
    let ([native, make], []) = arguments.bind("TlsConnection._begin", ["native", "make"], [])?;
    if this.engine().is_some() {
        return Err(exception::<PyRuntimeError>("the TLS connection has an engine already"));
    }
    choice::choose(this, native.is_true()?, notify(this)?, || Ok(call0(&make).map(drop)?))
}

/// Stores ciphertext that was received before the connection used TLS.
fn preload(this: This<'_, Connection>, data: Borrowed<'_>) -> Result<(), Raised> {
    let data = Buffer::readable(&data)?;
    this.engine().map_or(Ok(()), |engine| engine.feed(data.as_slice()))
}

/// Sends the writes of this turn, so that buffer sizes are the same as in asyncio.
fn write_now(this: This<'_, Connection>) -> Result<(), Raised> {
    if this.state.get() != TlsState::Wrapped || this.queue.is_empty() {
        return Ok(());
    }
    write::write_now(this)
}

/// asyncio's `_append_write_backlog`, which asyncio's own tests call.
fn append_write_backlog(this: This<'_, Connection>, data: Borrowed<'_>) -> Result<(), Raised> {
    write::push(this, write::immutable(&data)?)?;
    Ok(())
}

/// Called when the stream transport has room for more data.
fn resume_writing(this: This<'_, Connection>) -> Result<(), Raised> {
    this.stream_paused.writing.set(false);
    match this.state.get() {
        TlsState::Wrapped | TlsState::Flushing => write::write_now(this),
        TlsState::Unwrapped | TlsState::Handshake | TlsState::Shutdown => write::process_outgoing(this),
    }
}

const METHODS: &[Method<Connection>] = &[
    Method::fast(
        c"_begin",
        begin,
        c"_begin(native, make)\n\nCall make, which creates the SSLObject, and choose an engine.",
    ),
    Method::one_arg(
        c"_preload",
        preload,
        c"Store ciphertext that was received before the connection used TLS.",
    ),
    Method::no_args(c"_drop_pending", |this: This<'_, Connection>| this.lost(), c"Drop all data that waits."),
    Method::no_args(
        c"_holds_data",
        |this: This<'_, Connection>| !this.undelivered.borrow().is_empty(),
        c"Is there plaintext that was not delivered to a buffered protocol yet?",
    ),
    Method::no_args(
        c"_send_last",
        write::send_last,
        c"Send the writes of this turn, before the connection is closed by force.",
    ),
    Method::one_arg(c"_append_write_backlog", append_write_backlog, c"Add data that is sent later."),
    // asyncio's code calls it from callbacks and methods that run in the context of their caller.
    Method::no_args(
        c"_do_read",
        |this: This<'_, Connection>| this.in_context(|| read::read(this, None)),
        c"See asyncio's SSLProtocol.",
    ),
    Method::one_arg(
        c"_in_context",
        |this: This<'_, Connection>, function: Borrowed<'_>| this.in_context(|| call0(&function)),
        c"_in_context(function, /)\n\nCall a function in the connection's context.",
    ),
    Method::no_args(c"_do_write", write::write_all, c"See asyncio's SSLProtocol."),
    Method::no_args(c"_do_write_now", write_now, c"Send the writes of this turn."),
    Method::no_args(c"_process_outgoing", write::process_outgoing, c"See asyncio's SSLProtocol."),
    Method::no_args(
        c"_get_write_buffer_size",
        |this: This<'_, Connection>| this.unsent(),
        c"See asyncio's SSLProtocol.",
    ),
    Method::no_args(
        c"_get_read_buffer_size",
        |this: This<'_, Connection>| this.unread(),
        c"See asyncio's SSLProtocol.",
    ),
    Method::no_args(
        c"resume_writing",
        resume_writing,
        c"Called when the stream transport has room for more data.",
    ),
];

// -- attributes ----------------------------------------------------------------------------------------

/// The loop can be set only once, so that a borrow of its core stays valid.
fn set_event_loop(this: This<'_, Connection>, value: Option<Borrowed<'_>>) -> PyResult<()> {
    let event_loop = value.unwrap_or(Borrowed::none());
    event_loop.bind(this.py()).cast::<EventLoop>()?;
    if this.event_loop.is_empty() {
        this.event_loop.set(Some(event_loop.to_owned()));
    } else if this.event_loop.as_ptr() != event_loop.as_ptr() {
        return Err(exception::<PyValueError>("the event loop of a TLS connection cannot be changed"));
    }
    Ok(())
}

fn set_transport(this: This<'_, Connection>, value: Option<Borrowed<'_>>) -> PyResult<()> {
    let transport = value.filter(|value| !value.is_none());
    if let Some(other) = transport {
        let loop_of = |stream: This<'_, Stream>| stream.base.event_loop().as_ptr();
        let Some(event_loop) = other.with_native(loop_of) else {
            let other = other.bind(this.py());
            return Err(exception_about::<PyTypeError>(c"expected a stream transport, not %R", &other));
        };
        if event_loop != this.event_loop.as_ptr() {
            return Err(exception::<PyValueError>("the stream transport belongs to another event loop"));
        }
    }
    this.transport.set(transport.map(Borrowed::to_owned));
    Ok(())
}

fn set_app_protocol(this: This<'_, Connection>, value: Option<Borrowed<'_>>) -> Result<(), Raised> {
    match value.filter(|value| !value.is_none()) {
        Some(protocol) => this.sink.set_and_keep(protocol.to_owned()),
        None => {
            this.sink.clear();
            Ok(())
        }
    }
}

fn state(this: This<'_, Connection>) -> PyResult<Ref> {
    Ok(Ref::from(states(this.py())?[this.state.get() as usize].bind(this.py()).clone()))
}

fn set_state(this: This<'_, Connection>, value: Option<Borrowed<'_>>) -> PyResult<()> {
    let value = value.unwrap_or(Borrowed::none());
    let Some(place) = states(this.py())?.iter().position(|member| member.as_ptr() == value.as_ptr()) else {
        let value = value.bind(this.py());
        return Err(exception_about::<PyValueError>(c"%R is not a state of a TLS connection", &value));
    };
    let (state, _) = NAMES[place];
    this.enter(state);
    Ok(())
}

fn exact_bool(value: Borrowed<'_>) -> PyResult<bool> {
    value.bind(value.py()).extract()
}

const ATTRIBUTES: &[Attribute<Connection>] = &[
    Attribute::new(c"_loop", |this: This<'_, Connection>| this.event_loop.get(), set_event_loop),
    Attribute::new(c"_transport", |this: This<'_, Connection>| this.transport.get(), set_transport),
    Attribute::new(c"_app_protocol", |this: This<'_, Connection>| this.sink.protocol.get(), set_app_protocol),
    slot_attribute!(Connection, c"_sslobj", ssl_object),
    Attribute::new(c"_state", state, set_state),
    flag_attribute!(Connection, c"_app_reading_paused", app_paused.reading, exact_bool),
    flag_attribute!(Connection, c"_app_writing_paused", app_paused.writing, exact_bool),
    flag_attribute!(Connection, c"_ssl_reading_paused", stream_paused.reading, exact_bool),
    flag_attribute!(Connection, c"_ssl_writing_paused", stream_paused.writing, exact_bool),
    mark_attribute!(Connection, c"_outgoing_high_water", |this| this.outgoing.high),
    mark_attribute!(Connection, c"_outgoing_low_water", |this| this.outgoing.low),
    mark_attribute!(Connection, c"_incoming_high_water", |this| this.incoming.high),
    mark_attribute!(Connection, c"_incoming_low_water", |this| this.incoming.low),
    Attribute::read_only(c"engine", |this: This<'_, Connection>| this.engine().map(Engine::name))
        .doc(c"What encrypts: 'native' or 'sslobject'; None before the handshake begins."),
];

// -- output without a read or write of the connection --------------------------------------------------

/// A callback for output that the engine writes outside of a read or write of this connection. Any thread may call it.
fn notify(this: This<'_, Connection>) -> PyResult<Notify> {
    let Some(core) = this.core() else {
        return Err(exception::<PyRuntimeError>("a TLS connection needs its event loop first"));
    };
    let inbox = core.inbox.clone();
    let target = Arc::new(PyWeakrefReference::new(&this.object().bind(this.py()))?.unbind());
    Ok(Box::new(move || {
        let target = target.clone();
        inbox.send(Box::new(move |py| send_unprompted(py, &target)));
    }))
}

/// Sends such output. Runs on the loop's thread.
fn send_unprompted(py: Python<'_>, target: &Py<PyWeakrefReference>) -> Result<(), Fatal> {
    let Some(object) = target.bind(py).upgrade().map(Ref::from) else { return Ok(()) };
    let send =
        |this: This<'_, Connection>| match (this.in_context(|| write::process_outgoing(this)), this.core()) {
            (Err(raised), Some(core)) => core.unraisable(raised),
            _ => Ok(()),
        };
    object.with_native(send).unwrap_or(Ok(()))
}

/// Why the native engine cannot be used in this process, or None if it can.
#[pyfunction]
pub(crate) fn tls_problem(py: Python<'_>) -> Option<&'static str> {
    choice::tested(py).err()
}

/// Makes the class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    set_native_protocol(NativeProtocol {
        is_class_of: |protocol| Connection::class().is_class_of(protocol),
        receive: read::receive,
        send_last: write::send_last_of,
        drain: write::drain,
        unsent: |protocol| protocol.with_native(|it: This<'_, Connection>| it.unsent()).unwrap_or(0),
    });
    // Without `ssl` there are no TLS connections.
    drop(ssl_module::init(py));
    ClassSpec::<Connection>::new(c"wakeloop._core.TlsConnection")
        .with_default_fields()
        .doc(c"The native half of a TLS connection.")
        .methods(METHODS)
        .attributes(ATTRIBUTES)
        .slots(&[TypeSlot::dealloc()])
        .slots(&TypeSlot::collected())
        .build(py)
}
