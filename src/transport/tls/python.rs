//! The native half of `wakeloop._tls.SSLProtocol` as Python sees it.
//!
//! Attributes under the names of asyncio's SSLProtocol, whose code reads and writes them, and the methods that
//! come before its own. Like the loop's native class, this one never defines `__init__`.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyWeakrefMethods, PyWeakrefReference};

use super::connection::{self, Connection, State};
use super::engine::Engine;
use super::{choice, read, write};
use crate::capi::error::{exception, exception_about};
use crate::capi::{Fallible, Fatal, Raised, Ref, Slot, This};
use crate::event_loop::event_loop::EventLoop;
use crate::libssl::bio::Notify;
use crate::transport::base::protocol_sink::{NativeProtocol, set_native_protocol};
use crate::transport::stream::state::Stream;

/// The members of asyncio's `SSLProtocolState`, in the order of [`State`].
fn states(py: Python<'_>) -> PyResult<&'static [Py<PyAny>; 5]> {
    static STATES: PyOnceLock<[Py<PyAny>; 5]> = PyOnceLock::new();
    STATES.get_or_try_init(py, || {
        let states = py.import(Fallible("asyncio.sslproto"))?.getattr(Fallible("SSLProtocolState"))?;
        let member = |name: &str| states.getattr(Fallible(name)).map(Bound::unbind);
        Ok([
            member("UNWRAPPED")?,
            member("DO_HANDSHAKE")?,
            member("WRAPPED")?,
            member("FLUSHING")?,
            member("SHUTDOWN")?,
        ])
    })
}

const STATES: [State; 5] =
    [State::Unwrapped, State::Handshake, State::Wrapped, State::Flushing, State::Shutdown];

/// Calls a function of the other files, which know the object as a native one.
fn native<T>(
    slf: &Bound<'_, Connection>,
    body: impl FnOnce(This<'_, Connection>) -> Result<T, Raised>,
) -> PyResult<T> {
    let object = Ref::from(slf.clone().into_any());
    Ok(body(object.downcast().ok_or(Raised)?)?)
}

fn get<'py>(py: Python<'py>, slot: &Slot) -> Bound<'py, PyAny> {
    slot.get().map_or_else(|| py.None().into_bound(py), |value| value.bind(py).clone())
}

fn set(slot: &Slot, value: Bound<'_, PyAny>) {
    slot.set(if value.is_none() { None } else { Some(value.into()) });
}

#[pymethods]
impl Connection {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Connection {
        Connection::empty()
    }

    /// Run asyncio's `__init__`, which makes the SSLObject, and take the engine for it.
    #[pyo3(signature = (native, make, *args, **kwargs))]
    fn _begin(
        slf: &Bound<'_, Self>,
        native: bool,
        make: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let connection = slf.get();
        if connection.engine().is_some() {
            return Err(exception::<PyRuntimeError>("the TLS connection has begun already"));
        }
        let notify = notify(slf)?;
        choice::choose(slf.as_any(), connection, native, notify, || make.call(args, kwargs).map(drop))
    }

    /// Keep ciphertext that came before the connection was one.
    fn _preload(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = crate::capi::buffer::Buffer::readable(data.as_ptr())?;
        match slf.get().engine() {
            Some(engine) => Ok(engine.feed(data.as_slice())?),
            None => Ok(()),
        }
    }

    /// The connection is lost: drop what waits.
    fn _drop_pending(&self) {
        self.lost();
    }

    /// Is there plaintext that a buffered protocol has not taken yet?
    fn _holds_data(&self) -> bool {
        !self.undelivered().is_empty()
    }

    /// Send what was written in this turn, before the connection is closed by force.
    fn _send_last(slf: &Bound<'_, Self>) {
        write::send_last_of(&Ref::from(slf.clone().into_any()));
    }

    // -- asyncio's methods -----------------------------------------------------------------------

    fn _set_app_protocol(slf: &Bound<'_, Self>, protocol: Bound<'_, PyAny>) -> PyResult<()> {
        Ok(slf.get().sink.set(protocol.into())?)
    }

    fn _do_read(slf: &Bound<'_, Self>) -> PyResult<()> {
        native(slf, |this| read::read(this, None))
    }

    fn _do_write(slf: &Bound<'_, Self>) -> PyResult<()> {
        native(slf, write::write_all)
    }

    /// What was written in this turn is sent now, so that sizes are what asyncio would tell.
    fn _do_write_now(slf: &Bound<'_, Self>) -> PyResult<()> {
        let connection = slf.get();
        if connection.state.get() != State::Wrapped || connection.queue.is_empty() {
            return Ok(());
        }
        native(slf, write::write_now)
    }

    /// asyncio's own tests add data here before they ask for it to be sent.
    fn _append_write_backlog(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = write::immutable(&Ref::from(data.clone()))?;
        native(slf, |this| {
            write::push(this, data);
            Ok(())
        })
    }

    fn _process_outgoing(slf: &Bound<'_, Self>) -> PyResult<()> {
        native(slf, write::process_outgoing)
    }

    fn _get_write_buffer_size(&self) -> Fallible<usize> {
        Fallible(self.unsent())
    }

    fn _get_read_buffer_size(&self) -> Fallible<usize> {
        Fallible(self.unread())
    }

    /// The stream transport holds more than it wants to.
    fn pause_writing(&self) {
        self.stream_paused.writing.set(true);
    }

    /// It has sent enough of that.
    fn resume_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        let connection = slf.get();
        connection.stream_paused.writing.set(false);
        native(slf, |this| match connection.state.get() {
            State::Wrapped | State::Flushing => write::write_now(this),
            State::Unwrapped | State::Handshake | State::Shutdown => write::process_outgoing(this),
        })
    }

    // -- asyncio's attributes --------------------------------------------------------------------

    #[getter(_loop)]
    fn event_loop<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        get(py, &self.event_loop)
    }

    #[setter(_loop)]
    fn set_event_loop(&self, event_loop: &Bound<'_, EventLoop>) -> PyResult<()> {
        let slot = &self.event_loop;
        // It never changes, so a borrow of the loop's core stays valid.
        if slot.is_empty() {
            slot.set(Some(event_loop.clone().into_any().into()));
        } else if slot.as_ptr() != event_loop.as_ptr() {
            return Err(exception::<PyValueError>("a TLS connection keeps its event loop"));
        }
        Ok(())
    }

    #[getter(_transport)]
    fn transport<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        get(py, &self.transport)
    }

    #[setter(_transport)]
    fn set_transport(&self, transport: Bound<'_, PyAny>) -> PyResult<()> {
        let is_stream = Ref::from(transport.clone()).downcast::<Stream>().is_some();
        if !transport.is_none() && !is_stream {
            return Err(exception_about::<PyTypeError>(c"a stream transport is needed, not %R", &transport));
        }
        set(&self.transport, transport);
        Ok(())
    }

    #[getter(_app_protocol)]
    fn app_protocol<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        get(py, &self.sink.protocol)
    }

    #[setter(_app_protocol)]
    fn set_app_protocol(&self, protocol: Bound<'_, PyAny>) -> PyResult<()> {
        if protocol.is_none() {
            self.sink.clear();
            return Ok(());
        }
        Ok(self.sink.set(protocol.clone().into())?)
    }

    #[getter(_sslobj)]
    fn sslobj<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        get(py, &self.ssl_object)
    }

    #[setter(_sslobj)]
    fn set_sslobj(&self, ssl_object: Bound<'_, PyAny>) {
        set(&self.ssl_object, ssl_object);
    }

    #[getter(_state)]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let index = STATES.iter().position(|state| *state == self.state.get()).unwrap_or(0);
        Ok(states(py)?[index].bind(py).clone())
    }

    #[setter(_state)]
    fn set_state(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let known = states(state.py())?;
        match known.iter().position(|member| member.is(state)) {
            Some(index) => {
                self.state.set(STATES[index]);
                match (STATES[index], self.engine()) {
                    (State::Wrapped, Some(engine)) => engine.established(),
                    (State::Shutdown, Some(engine)) => engine.ends(),
                    _ => {}
                }
                Ok(())
            }
            None => Err(exception_about::<PyValueError>(c"%R is not a state of a TLS connection", state)),
        }
    }

    #[getter(_app_reading_paused)]
    fn app_reading_paused(&self) -> bool {
        self.app_paused.reading.get()
    }

    #[setter(_app_reading_paused)]
    fn set_app_reading_paused(&self, paused: bool) {
        self.app_paused.reading.set(paused);
    }

    #[getter(_app_writing_paused)]
    fn app_writing_paused(&self) -> bool {
        self.app_paused.writing.get()
    }

    #[setter(_app_writing_paused)]
    fn set_app_writing_paused(&self, paused: bool) {
        self.app_paused.writing.set(paused);
    }

    #[getter(_ssl_reading_paused)]
    fn ssl_reading_paused(&self) -> bool {
        self.stream_paused.reading.get()
    }

    #[setter(_ssl_reading_paused)]
    fn set_ssl_reading_paused(&self, paused: bool) {
        self.stream_paused.reading.set(paused);
    }

    #[getter(_ssl_writing_paused)]
    fn ssl_writing_paused(&self) -> bool {
        self.stream_paused.writing.get()
    }

    #[setter(_ssl_writing_paused)]
    fn set_ssl_writing_paused(&self, paused: bool) {
        self.stream_paused.writing.set(paused);
    }

    #[getter(_outgoing_high_water)]
    fn outgoing_high_water<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.outgoing_high.shown()?.bind(py))
    }

    #[setter(_outgoing_high_water)]
    fn set_outgoing_high_water(&self, size: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(self.outgoing_high.set(&Ref::from(size.clone()))?)
    }

    #[getter(_outgoing_low_water)]
    fn outgoing_low_water<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.outgoing_low.shown()?.bind(py))
    }

    #[setter(_outgoing_low_water)]
    fn set_outgoing_low_water(&self, size: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(self.outgoing_low.set(&Ref::from(size.clone()))?)
    }

    #[getter(_incoming_high_water)]
    fn incoming_high_water<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.incoming_high.shown()?.bind(py))
    }

    #[setter(_incoming_high_water)]
    fn set_incoming_high_water(&self, size: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(self.incoming_high.set(&Ref::from(size.clone()))?)
    }

    #[getter(_incoming_low_water)]
    fn incoming_low_water<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.incoming_low.shown()?.bind(py))
    }

    #[setter(_incoming_low_water)]
    fn set_incoming_low_water(&self, size: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(self.incoming_low.set(&Ref::from(size.clone()))?)
    }

    /// "native" or "sslobject": the engine that encrypts this connection.
    #[getter(engine)]
    fn engine_name(&self) -> Option<&'static str> {
        self.engine().map(Engine::name)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let connection = self;
        let mut each = |slot: &Slot| slot.visit_with(&visit);
        for slot in [&connection.event_loop, &connection.transport, &connection.ssl_object] {
            each(slot)?;
        }
        connection.sink.slots().into_iter().try_for_each(&mut each)?;
        match connection.engine() {
            Some(engine) => engine.slots().try_for_each(each),
            None => Ok(()),
        }
    }

    /// The loop stays: methods need it, and its own clear breaks the cycle. So does the engine, whose objects
    /// refer to nothing but each other.
    fn __clear__(&self) {
        self.sink.clear();
        self.transport.clear();
        self.ssl_object.clear();
    }
}

/// Reports output that the engine made outside of a read or write of this connection. Any thread may call it.
fn notify(slf: &Bound<'_, Connection>) -> PyResult<Notify> {
    let Some(core) = slf.get().core() else {
        return Err(exception::<PyRuntimeError>("a TLS connection needs its event loop first"));
    };
    let inbox = core.inbox.clone();
    let target = Arc::new(PyWeakrefReference::new(slf)?.unbind());
    Ok(Box::new(move || {
        let target = target.clone();
        inbox.send(Box::new(move |py| send_unattended(py, &target)));
    }))
}

/// Sends such output, on the loop's thread.
fn send_unattended(py: Python<'_>, target: &Py<PyWeakrefReference>) -> Result<(), Fatal> {
    let Some(slf) = target.bind(py).upgrade() else { return Ok(()) };
    let Ok(slf) = slf.cast_into::<Connection>() else { return Ok(()) };
    let connection = slf.get();
    let sent = native(&slf, |this| connection.in_context(|| write::process_outgoing(this)));
    match (sent.map_err(Raised::from), connection.core()) {
        (Err(raised), Some(core)) => core.unraisable(raised),
        _ => Ok(()),
    }
}

/// Why the native engine cannot be used in this process, or None if it can.
#[pyfunction]
pub(crate) fn tls_problem(py: Python<'_>) -> Option<&'static str> {
    choice::tested(py).err()
}

/// Makes the class known. Called once, by the module's initialisation.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    connection::init(py);
    set_native_protocol(NativeProtocol {
        is_class_of: |protocol| protocol.downcast::<Connection>().is_some(),
        receive: read::receive,
        send_last: write::send_last_of,
    });
    Ok(())
}
