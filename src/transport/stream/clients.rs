//! A server's clients: `Server._attach` and `_detach`, which asyncio calls once each per connection.
//!
//! Since 3.13 they keep a `WeakSet` of transports, for `close_clients`. Its methods cost more than accepting the
//! connection does, and an entry as much memory as half of a transport. So a server of asyncio's own class that listens
//! on a loop of ours has a list that only counts them ([`ClientCount`]; `wakeloop._clients` makes it of that and a
//! `WeakSet`), until a program wants to see them: then they are found in the loop's table. Any other server has its
//! methods called.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PySet, PyTuple, PyWeakrefReference};

use super::counted::ClientCount;
use super::state::Stream;
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

    #[getter]
    fn counted(&self) -> usize {
        self.get()
    }

    /// Names the transports of this loop that are counted here, by weak references with this callback. They are no
    /// longer counted then, each from when it is named.
    fn name<'py>(
        this: &Bound<'py, Self>,
        event_loop: &Bound<'py, EventLoop>,
        named: &Bound<'py, PySet>,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        if this.get().get() == 0 {
            return Ok(());
        }
        for object in event_loop.get().core().fds.sources() {
            let Some(transport) = counted_in(this, &object) else { continue };
            named.add(PyWeakrefReference::new_with(&object.bind(this.py()), callback)?)?;
            transport.counted.leave();
        }
        Ok(())
    }

    /// A transport is no longer counted here, if it was.
    fn uncount(this: &Bound<'_, Self>, transport: Bound<'_, PyAny>) {
        if let Some(transport) = counted_in(this, &Ref::from(transport)) {
            transport.counted.leave();
        }
    }
}

/// The transport that an object is, if it is counted here.
fn counted_in<'a>(clients: &Bound<'_, ClientCount>, object: &'a Ref) -> Option<This<'a, Stream>> {
    object.downcast::<Stream>().filter(|this| this.counted.slot().as_ptr() == clients.as_ptr())
}

/// Attaches the transport to its server.
pub(super) fn enter(this: This<'_, Stream>) -> Result<(), Raised> {
    let Some(server) = this.server.get() else { return Ok(()) };
    if let Some(clients) = list_of(&server)? {
        this.counted.enter(clients);
        return Ok(());
    }
    // A server that refuses the transport does not have it.
    call(&server, &imports()._attach, this.object()).inspect_err(|_| drop(this.server.take()))
}

/// Detaches the transport from its server.
pub(super) fn leave(this: This<'_, Stream>) -> Result<(), Raised> {
    let Some(server) = this.server.take() else { return Ok(()) };
    // The last client of a server that is closed wakes those who wait for that, which the method does.
    if this.counted.leave() && is_open(&server)? {
        return Ok(());
    }
    call(&server, &imports()._detach, this.object())
}

fn call(server: &Ref, name: &Ref, transport: Borrowed<'_>) -> Result<(), Raised> {
    let arguments: &[Borrowed<'_>] = if SERVER_LISTS_CLIENTS { &[transport] } else { &[] };
    server.call_method(name, arguments).map(drop)
}

fn is_open(server: &Ref) -> Result<bool, Raised> {
    Ok(!server.getattr(&imports()._sockets)?.is_none())
}

/// The list of an open server of asyncio's own class, if it is one that counts.
fn list_of(server: &Ref) -> Result<Option<Bound<'_, ClientCount>>, Raised> {
    let names = imports();
    let is_own = server.is_exactly(&names.server_class);
    if !is_own || !SERVER_LISTS_CLIENTS || !is_open(server)? {
        return Ok(None);
    }
    let clients = server.getattr(&names._clients)?;
    Ok(clients.bind(server.py()).cast_into().ok())
}
