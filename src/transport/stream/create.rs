//! Creates stream transports, for `_make_socket_transport`, a listener or a connect.

use std::cell::Cell;
use std::ffi::c_int;
use std::net::SocketAddr;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::address;
use super::counted::Counted;
use super::low_water::LowWater;
use super::methods::{ATTRIBUTES, METHODS};
use super::state::{Ends, Expected, Gate, ReadSide, Stream, WriteSide};
use crate::capi::error::raise_os_error;
use crate::capi::{Raised, Ref, Slot, sockaddr};
use crate::event_loop::event_loop::EventLoop;
use crate::kernel::core::Core;
use crate::transport::base::class::make_class;
use crate::transport::base::methods::{reading, writing};
use crate::transport::base::opening::{self, Parts};
use crate::transport::base::protocol_sink::ProtocolSink;
use crate::transport::base::write_habit::WriteHabit;

/// The parts of a new stream transport, in addition to [`Parts`].
#[derive(Debug)]
pub(crate) struct StreamParts {
    pub(crate) family: c_int,
    pub(crate) hides_proto: bool,
    pub(crate) server: Option<Ref>,
    pub(crate) sockname: Option<Ref>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) habit: WriteHabit,
}

/// Creates a transport and queues its start. On failure the caller keeps the descriptor.
pub(crate) fn create(core: &Core, parts: Parts, stream: StreamParts) -> Result<Ref, Raised> {
    opening::create(core, parts, |base| Stream {
        base,
        sink: ProtocolSink::default(),
        reading: ReadSide {
            gate: Cell::new(Gate::Starting),
            expected: Cell::new(Expected::Small),
            is_unsure: Cell::new(false),
            hides_proto: stream.hides_proto,
            family: stream.family,
            low_water: LowWater::new(stream.family),
        },
        writing: WriteSide { habit: stream.habit, ..WriteSide::default() },
        ends: Ends {
            sockname: Slot::new(stream.sockname),
            own: Cell::new(None),
            peer: Cell::new(stream.peer),
        },
        server: Slot::new(stream.server),
        counted: Counted::default(),
    })
}

/// Makes the class. Called once, at import.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    make_class(py, &[&reading(), &writing(), METHODS], ATTRIBUTES)
}

/// The native half of `_make_socket_transport`.
#[pyfunction]
#[pyo3(signature = (event_loop, sock, protocol, waiter, extra, server, context=None))]
#[allow(clippy::too_many_arguments, reason = "the hook's own arguments")]
pub(crate) fn make_stream<'py>(
    py: Python<'py>,
    event_loop: &Bound<'py, EventLoop>,
    sock: Bound<'py, PyAny>,
    protocol: Bound<'py, PyAny>,
    waiter: Option<Bound<'py, PyAny>>,
    extra: Option<Bound<'py, PyDict>>,
    server: Option<Bound<'py, PyAny>>,
    context: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _held = event_loop.get().outside().enter();
    // A copy, because the transport adds entries.
    let extra = extra.map(|extra| extra.copy()).transpose()?.map(|extra| Ref::from(extra.into_any()));
    let socket = Ref::from(sock.clone());
    let parts = Parts::of_owner(sock, protocol, waiter, extra, context)?;
    let fd = parts.fd;
    let mut family = libc::AF_UNSPEC;
    if sockaddr::is_plain_socket(socket.as_ptr()) {
        family = sockaddr::family(&socket)?;
        if sockaddr::is_tcp(&socket)? {
            address::set_nodelay(fd).map_err(|error| raise_os_error(&error))?;
        }
    }
    let stream = StreamParts {
        family,
        hides_proto: false,
        server: server.map(Ref::from),
        sockname: None,
        peer: address::peer_address(fd),
        habit: WriteHabit::default(),
    };
    let transport = create(event_loop.get().core(), parts, stream)?;
    Ok(transport.bind(py).clone())
}
