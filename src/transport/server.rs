//! A server's list of its clients: `Server._attach` and `_detach`, which asyncio calls once each per connection.
//!
//! Since 3.13 the list is a `WeakSet`, whose Python methods cost more than accepting the connection does. For
//! asyncio's own class the entry is put into the set underneath and taken out of it here; any other server, or one
//! that is laid out in another way, has its methods called.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::call::{getattr, method};
use crate::capi::imports::imports;
use crate::capi::{Fallible, Raised, Ref};

/// `_attach` and `_detach` take the transport (3.13) or nothing.
static TAKES_TRANSPORT: AtomicBool = AtomicBool::new(false);

/// Finds out what the interpreter's server is like. Called once, by the module's initialisation.
pub(super) fn learn(py: Python<'_>) -> PyResult<()> {
    let attach = py
        .import(Fallible("asyncio.base_events"))?
        .getattr(Fallible("Server"))?
        .getattr(Fallible("_attach"))?;
    let takes: usize = attach.getattr(Fallible("__code__"))?.getattr(Fallible("co_argcount"))?.extract()?;
    // Relaxed: published under the GIL.
    TAKES_TRANSPORT.store(takes > 1, Ordering::Relaxed);
    Ok(())
}

/// Tells the server of a new connection. What comes back is its entry in the list, for [`detach`].
pub(super) fn attach(server: &Ref, transport: &Ref) -> Result<Option<Ref>, Raised> {
    if let Some((set, forget)) = list_of(server) {
        // SAFETY: live objects; a weak reference that the set shares with the caller.
        unsafe {
            let entry = Ref::from_owned(ffi::PyWeakref_NewRef(transport.as_ptr(), forget.as_ptr()));
            let entry = entry.ok_or(Raised)?;
            return if ffi::PySet_Add(set.as_ptr(), entry.as_ptr()) < 0 {
                Err(Raised)
            } else {
                Ok(Some(entry))
            };
        }
    }
    tell(server, imports()._attach.as_ptr(), transport)?;
    Ok(None)
}

/// Tells the server that the connection is over.
pub(super) fn detach(server: &Ref, transport: &Ref, entry: Option<Ref>) -> Result<(), Raised> {
    if let Some(entry) = entry
        && let Some((set, _)) = list_of(server)
    {
        // SAFETY: live objects.
        let done = unsafe { ffi::PySet_Discard(set.as_ptr(), entry.as_ptr()) };
        return if done < 0 { Err(Raised) } else { Ok(()) };
    }
    // A server that is closed has waiters to wake when its last client is gone.
    tell(server, imports()._detach.as_ptr(), transport)
}

fn tell(server: &Ref, name: *mut ffi::PyObject, transport: &Ref) -> Result<(), Raised> {
    // Relaxed: stored once, at import.
    if TAKES_TRANSPORT.load(Ordering::Relaxed) {
        method(server, name, &[transport.as_ptr()]).map(drop)
    } else {
        method(server, name, &[]).map(drop)
    }
}

/// The set under the list of an open server of asyncio's own class, and what its weak references call.
fn list_of(server: &Ref) -> Option<(Ref, Ref)> {
    let names = imports();
    // SAFETY: types of live objects.
    let is = |object: &Ref, class: &Ref| unsafe {
        ffi::Py_TYPE(object.as_ptr()).cast::<ffi::PyObject>() == class.as_ptr()
    };
    if !is(server, &names.server_class) || !TAKES_TRANSPORT.load(Ordering::Relaxed) {
        return None;
    }
    let found = (|| {
        let sockets = getattr(server.as_ptr(), names._sockets.as_ptr())?;
        // SAFETY: comparing with the address of `None`.
        if sockets.as_ptr() == unsafe { ffi::Py_None() } {
            return Ok(None);
        }
        let list = getattr(server.as_ptr(), names._clients.as_ptr())?;
        if !is(&list, &names.weak_set) {
            return Ok(None);
        }
        let (set, forget) =
            (getattr(list.as_ptr(), names.data.as_ptr())?, getattr(list.as_ptr(), names._remove.as_ptr())?);
        // SAFETY: a live object.
        Ok((unsafe { ffi::PySet_Check(set.as_ptr()) } != 0).then_some((set, forget)))
    })();
    found.unwrap_or_else(|raised: Raised| {
        // Laid out in another way.
        drop(raised.take());
        None
    })
}
