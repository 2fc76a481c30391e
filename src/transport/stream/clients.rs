//! A server's clients: `Server._attach` and `_detach`, which asyncio calls once each per connection.
//!
//! Since 3.13 they keep a `WeakSet` of transports, for `close_clients`. Its methods cost more than accepting the
//! connection does, and an entry as much memory as half of a transport. So a server of asyncio's own class that listens
//! on a loop of ours has a list that only counts them ([`ClientCount`]; `wakeloop._clients` makes it of that and a
//! `WeakSet`), until somebody wants to see who they are: then the loop's table tells. Any other server has its methods
//! called.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySet, PyTuple};

use super::transport::{is_stream, stream_of};
use crate::capi::call::{getattr, method};
use crate::capi::error::fetch;
use crate::capi::imports::imports;
use crate::capi::{Fallible, Raised, Ref};
use crate::event_loop::event_loop::EventLoop;

/// `_attach` and `_detach` take the transport (3.13) or nothing.
static TAKES_TRANSPORT: AtomicBool = AtomicBool::new(false);

/// Finds out what the interpreter's server is like. Called once, by the module's initialisation.
pub(crate) fn learn(py: Python<'_>) -> PyResult<()> {
    let attach = py
        .import(Fallible("asyncio.base_events"))?
        .getattr(Fallible("Server"))?
        .getattr(Fallible("_attach"))?;
    let takes: usize = attach.getattr(Fallible("__code__"))?.getattr(Fallible("co_argcount"))?.extract()?;
    // Relaxed: published under the GIL.
    TAKES_TRANSPORT.store(takes > 1, Ordering::Relaxed);
    Ok(())
}

/// How many transports there are that a server's list does not name. Each of them holds the list.
#[pyclass(module = "wakeloop._core", subclass, frozen)]
#[derive(Debug)]
pub(crate) struct ClientCount {
    /// Relaxed everywhere: used with the GIL held.
    counted: AtomicUsize,
}

#[pymethods]
impl ClientCount {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> ClientCount {
        ClientCount { counted: AtomicUsize::new(0) }
    }

    #[getter]
    fn counted(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }

    /// Names the transports of this loop that are counted here, by weak references with this callback. They are no
    /// longer counted then, each from when it is named.
    fn name<'py>(
        this: &Bound<'py, Self>,
        event_loop: &Bound<'py, EventLoop>,
        named: &Bound<'py, PySet>,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        if this.get().counted() == 0 {
            return Ok(());
        }
        for object in event_loop.get().core().fds.sources() {
            if !is_counted(this, object.as_ptr()) {
                continue;
            }
            // SAFETY: live objects; a weak reference that the set shares with nobody.
            unsafe {
                let entry = Ref::from_owned(ffi::PyWeakref_NewRef(object.as_ptr(), callback.as_ptr()));
                let added = entry.map_or(-1, |entry| ffi::PySet_Add(named.as_ptr(), entry.as_ptr()));
                if added < 0 {
                    return Err(fetch(this.py()));
                }
                stream_of(object.as_ptr()).leave_clients();
            }
        }
        Ok(())
    }

    /// A transport is no longer counted here, if it was.
    fn uncount(this: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) {
        if is_counted(this, transport.as_ptr()) {
            // SAFETY: a live stream transport.
            unsafe { stream_of(transport.as_ptr()) }.leave_clients();
        }
    }
}

fn is_counted(clients: &Bound<'_, ClientCount>, object: *mut ffi::PyObject) -> bool {
    // SAFETY: a live object, and a stream transport where its fields are looked at.
    is_stream(object) && unsafe { stream_of(object) }.clients.as_ptr() == clients.as_ptr()
}

/// Tells the server of a new connection. What comes back is the list that counts it, for [`detach`].
pub(crate) fn attach(server: &Ref, transport: &Ref) -> Result<Option<Ref>, Raised> {
    if let Some(clients) = list_of(server)? {
        count_of(&clients, |count| count.fetch_add(1, Ordering::Relaxed));
        return Ok(Some(clients));
    }
    tell(server, imports()._attach.as_ptr(), transport)?;
    Ok(None)
}

/// Tells the server that the connection is over.
pub(crate) fn detach(server: &Ref, transport: &Ref, clients: Option<Ref>) -> Result<(), Raised> {
    if let Some(clients) = clients {
        leave(&clients);
        if is_open(server)? {
            return Ok(());
        }
        // Of a server that is closed, the last client wakes those who wait for that.
    }
    tell(server, imports()._detach.as_ptr(), transport)
}

/// A transport is no longer counted in the list that it held.
pub(crate) fn leave(clients: &Ref) {
    count_of(clients, |count| count.fetch_sub(1, Ordering::Relaxed));
}

fn count_of<T>(clients: &Ref, change: impl FnOnce(&AtomicUsize) -> T) -> Option<T> {
    // SAFETY: the GIL is held by every caller.
    let py = unsafe { Python::assume_attached() };
    Some(change(&clients.bind(py).cast::<ClientCount>().ok()?.get().counted))
}

fn tell(server: &Ref, name: *mut ffi::PyObject, transport: &Ref) -> Result<(), Raised> {
    // Relaxed: stored once, at import.
    if TAKES_TRANSPORT.load(Ordering::Relaxed) {
        method(server, name, &[transport.as_ptr()]).map(drop)
    } else {
        method(server, name, &[]).map(drop)
    }
}

fn is_open(server: &Ref) -> Result<bool, Raised> {
    let sockets = getattr(server.as_ptr(), imports()._sockets.as_ptr())?;
    // SAFETY: comparing with the address of `None`.
    Ok(sockets.as_ptr() != unsafe { ffi::Py_None() })
}

/// The list of an open server of asyncio's own class, if it is one that counts.
fn list_of(server: &Ref) -> Result<Option<Ref>, Raised> {
    let names = imports();
    // SAFETY: the type of a live object.
    let own = unsafe { ffi::Py_TYPE(server.as_ptr()) }.cast::<ffi::PyObject>() == names.server_class.as_ptr();
    // Relaxed: stored once, at import.
    if !own || !TAKES_TRANSPORT.load(Ordering::Relaxed) || !is_open(server)? {
        return Ok(None);
    }
    let clients = getattr(server.as_ptr(), names._clients.as_ptr())?;
    // SAFETY: the GIL is held by every caller.
    let counts = clients.bind(unsafe { Python::assume_attached() }).is_instance_of::<ClientCount>();
    Ok(counts.then_some(clients))
}
