//! The clients of a server: `Server._attach` and `_detach`, which asyncio calls once per connection.
//!
//! Since 3.13 these methods keep a `WeakSet` of transports, for `close_clients`. Its methods cost more than accepting
//! the connection, and an entry needs half as much memory as a transport. So a server of asyncio's own class on one of
//! our loops gets a set that only counts its clients: a subclass of [`ClientCount`] and `WeakSet` in
//! `wakeloop._net.connections`. When a program reads the set, the transports are found in the loop's table. For other
//! servers the methods are called.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PySet, PyTuple, PyWeakrefReference};

use super::counted::ClientCount;
use super::state::Stream;
use crate::capi::error::unless_raised;
use crate::capi::imports::imports;
use crate::capi::{Borrowed, Raised, Ref, This};
use crate::compat::version::SERVER_LISTS_CLIENTS;
use crate::event_loop::event_loop::EventLoop;

#[pymethods]
impl ClientCount {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> ClientCount {
        ClientCount::default()
    }

    /// How many transports are counted.
    #[getter]
    fn counted(&self) -> usize {
        self.get()
    }

    /// Add weak references to the transports of this loop that are counted here, each with this callback. A transport
    /// that was added is no longer counted.
    fn name<'py>(
        this: &Bound<'py, Self>,
        event_loop: &Bound<'py, EventLoop>,
        named: &Bound<'py, PySet>,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        if this.get().get() == 0 {
            return Ok(());
        }
        let core = event_loop.get().outside();
        let _held = core.enter();
        for object in core.fds.sources() {
            let Some(transport) = object.downcast().filter(|it| is_counted_in(this, *it)) else { continue };
            named.add(PyWeakrefReference::new_with(&object.bind(this.py()), callback)?)?;
            transport.counted.leave();
        }
        Ok(())
    }

    /// Stop counting a transport, if it is counted here.
    fn uncount(this: &Bound<'_, Self>, transport: Bound<'_, PyAny>) {
        Ref::from(transport).with_native(|transport: This<'_, Stream>| {
            if is_counted_in(this, transport) {
                transport.counted.leave();
            }
        });
    }
}

fn is_counted_in(clients: &Bound<'_, ClientCount>, transport: This<'_, Stream>) -> bool {
    transport.counted.slot().as_ptr() == clients.as_ptr()
}

/// Attaches the transport to its server.
pub(super) fn enter(this: This<'_, Stream>) -> Result<(), Raised> {
    let Some(server) = this.server.get() else { return Ok(()) };
    if let Some(clients) = counting_set_of(&server)? {
        this.counted.enter(clients);
        return Ok(());
    }
    // If the server raises, the transport is not attached.
    call(&server, &imports()._attach, this.object()).inspect_err(|_| drop(this.server.take()))
}

/// Detaches the transport from its server.
pub(super) fn leave(this: This<'_, Stream>) -> Result<(), Raised> {
    let Some(server) = this.server.take() else { return Ok(()) };
    // On a closed server the method is called, because it wakes `wait_closed()` when the last client is detached.
    if this.counted.leave() && is_open(&server)? {
        return Ok(());
    }
    call(&server, &imports()._detach, this.object())
}

/// The number of connections of a server of asyncio's own class. Runs no Python code. Transports are missing that are in
/// the set because a program has read it.
pub(super) fn count(server: &Ref) -> Option<u32> {
    let count = || {
        if SERVER_LISTS_CLIENTS {
            return Ok(counting_set_of(server)?.map(|clients| clients.get().get()));
        }
        let is_own = server.is_exactly(&imports().server_class);
        let count = if is_own { server.getattr(&imports()._active_count)?.to_index()? } else { -1 };
        Ok(usize::try_from(count).ok())
    };
    unless_raised(count()).flatten().and_then(|count| u32::try_from(count).ok())
}

fn call(server: &Ref, name: &Ref, transport: Borrowed<'_>) -> Result<(), Raised> {
    let arguments: &[Borrowed<'_>] = if SERVER_LISTS_CLIENTS { &[transport] } else { &[] };
    server.call_method(name, arguments).map(drop)
}

fn is_open(server: &Ref) -> Result<bool, Raised> {
    Ok(!server.getattr(&imports()._sockets)?.is_none())
}

/// The counting set of an open server of asyncio's own class.
fn counting_set_of(server: &Ref) -> Result<Option<Bound<'_, ClientCount>>, Raised> {
    let names = imports();
    let is_own = server.is_exactly(&names.server_class);
    if !is_own || !SERVER_LISTS_CLIENTS || !is_open(server)? {
        return Ok(None);
    }
    let clients = server.getattr(&names._clients)?;
    Ok(clients.bind(server.py()).cast_into().ok())
}
