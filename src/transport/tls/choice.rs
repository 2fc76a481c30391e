//! Chooses the engine of a connection, and tests whether the native engine works in this process.

use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;

use super::connection::Connection;
use super::engine::Engine;
use super::native::Native;
use super::object::Object;
use super::ssl_module::{is_again, module};
use crate::capi::error::exception;
use crate::capi::{Fallible, Ref, Slot, This};
use crate::libssl::bio::Notify;
use crate::libssl::{Io, Library, Ssl, capture};

/// Calls `make` (asyncio's `__init__`, which creates the SSLObject), and sets the connection's engine. With `native`
/// that is the native engine, if it can be used for this connection.
pub(super) fn choose(
    this: This<'_, Connection>,
    native: bool,
    notify: Notify,
    make: impl FnOnce() -> PyResult<()>,
) -> PyResult<()> {
    let py = this.py();
    let library = if native { tested(py).ok() } else { None };
    let (done, made) = match library {
        Some(_) => capture::during(make),
        None => (make(), None),
    };
    done?;
    let object = this.ssl_object.get().unwrap_or_else(Ref::none).bind(py);
    let module = module(py)?;
    // If `read` or `write` is patched, or overridden in a subclass, it has to be called. So has a method of another class
    // in place of MemoryBIO.
    let plain_object = module.object_class.is_unpatched()
        && module.object_class.is_used_by(&Ref::from(object.clone())).map_err(PyErr::from)?;
    let raw = object.getattr(Fallible("_sslobj")).unwrap_or_else(|_| py.None().into_bound(py));
    let plain = plain_object && raw.get_type().is(module.socket_class.bind(py));
    let owner = this.object().bind(py);
    let (incoming, outgoing) = (owner.getattr(Fallible("_incoming"))?, owner.getattr(Fallible("_outgoing"))?);
    let memory = module.memory_class.bind(py);
    let lends = plain && incoming.get_type().is(memory) && outgoing.get_type().is(memory);
    let native = match (library, made) {
        (Some(library), Some(ssl)) if lends && !has_message_callback(&object) => {
            native_engine(library, ssl, &raw, notify)
        }
        _ => None,
    };
    let engine = match native {
        Some(native) => Engine::Native(native),
        None => Engine::Object(Object::new(if plain { &raw } else { &object }, incoming, outgoing, lends)?),
    };
    // If `make` has called this function again, the engine is set already, and stays.
    let _ = this.engine.set(engine);
    Ok(())
}

/// The native engine for an SSL that this thread has just created, if `raw` owns it.
fn native_engine(
    library: &'static Library,
    ssl: Ssl,
    raw: &Bound<'_, PyAny>,
    notify: Notify,
) -> Option<Native> {
    // SAFETY: this thread has just created the SSL. If the comparison succeeds, the socket object owns it, and keeps it
    // alive.
    if unsafe { library.app_data(ssl) }.cast() != raw.as_ptr() {
        return None;
    }
    let io = Arc::new(Io::new(notify));
    // SAFETY: `raw` owns the SSL and stays alive, and no other code has used the SSL yet.
    let attached = unsafe { library.attach(ssl, io.clone()) };
    attached.then(|| Native { library, ssl, io, raw: Slot::new(Some(raw.clone().into())) })
}

/// Has the object's `SSLContext` a `_msg_callback`?
fn has_message_callback(object: &Bound<'_, PyAny>) -> bool {
    let callback =
        object.getattr(Fallible("context")).and_then(|context| context.getattr(Fallible("_msg_callback")));
    callback.is_ok_and(|callback| !callback.is_none())
}

static TESTED: OnceLock<Result<&'static Library, String>> = OnceLock::new();

/// The library, if the self-test has found that the native engine works in this process, or the reason why not.
pub(super) fn tested(py: Python<'_>) -> Result<&'static Library, &'static str> {
    if let Some(known) = TESTED.get() {
        return known.as_ref().map(|library| *library).map_err(String::as_str);
    }
    let found = match self_test(py) {
        // This says nothing about the library, so the next connection tries again.
        Err(error) if error.is_instance_of::<PyMemoryError>(py) => return Err("out of memory"),
        found => found.map_err(|error| error.value(py).to_string()),
    };
    TESTED.get_or_init(|| found).as_ref().map(|library| *library).map_err(String::as_str)
}

/// The self-test: does once everything on which the native engine relies, without a peer and without a certificate.
fn self_test(py: Python<'_>) -> PyResult<&'static Library> {
    let fail = |reason: &str| exception::<PyRuntimeError>(reason);
    let file = py.import(Fallible("_ssl"))?.getattr(Fallible("__file__")).ok();
    let path = file.map(|file| PyResult::Ok(CString::new(file.extract::<String>()?)?)).transpose()?;
    let library = Library::get(path.as_deref()).map_err(fail)?;

    let ssl = py.import(Fallible("ssl"))?;
    let context =
        ssl.getattr(Fallible("SSLContext"))?.call1((ssl.getattr(Fallible("PROTOCOL_TLS_CLIENT"))?,))?;
    context.setattr(Fallible("check_hostname"), false)?;
    let memory = ssl.getattr(Fallible("MemoryBIO"))?;
    let (incoming, outgoing) = (memory.call0()?, memory.call0()?);
    let (object, made) =
        capture::during(|| context.call_method1(Fallible("wrap_bio"), (&incoming, &outgoing)));
    let object = object?;
    let ssl_pointer =
        made.ok_or_else(|| fail("wrap_bio did not create an SSL with the libssl that was found"))?;
    let raw = object.getattr(Fallible("_sslobj"))?;
    // SAFETY: the SSL was just created, and `object` keeps it alive during this test. No other code uses it.
    unsafe {
        if library.app_data(ssl_pointer).cast() != raw.as_ptr() {
            return Err(fail("the SSL that was found does not belong to the SSLObject"));
        }
        incoming.call_method1(Fallible("write"), (Fallible(&b"x"[..]),))?;
        if library.pending_input(ssl_pointer) != 1 {
            return Err(fail("the SSL that was found does not read from the MemoryBIO"));
        }
    }
    let io = Arc::new(Io::new(Box::new(|| {})));
    // SAFETY: the SSL is alive, and no other code uses it; see above.
    if !unsafe { library.attach(ssl_pointer, io.clone()) } {
        return Err(fail("a BIO could not be created"));
    }
    match object.call_method0(Fallible("do_handshake")) {
        Err(error) if is_again(py, &error) => {}
        Err(error) => return Err(error),
        Ok(_) => return Err(fail("a handshake without a peer has succeeded")),
    }
    let hello = io.exchange_output(Vec::new(), false);
    if !hello.starts_with(&[0x16, 0x03, 0x01]) {
        return Err(fail("the handshake did not write a ClientHello"));
    }
    Ok(library)
}
