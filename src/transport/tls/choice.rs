//! Which engine a connection gets, and whether the native one works at all.

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

/// Runs `make`, asyncio's `__init__`, which makes the SSLObject, and gives the connection its engine: the native
/// one if `native` asks for it and nothing speaks against it.
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
    // A wrapper that overrides the data path keeps it.
    let class = object.get_type();
    let own = |name: &str| {
        let original = module.object_class.bind(py).getattr(Fallible(name));
        original.is_ok_and(|original| class.getattr(Fallible(name)).is_ok_and(|found| found.is(&original)))
    };
    let raw = object.getattr(Fallible("_sslobj")).unwrap_or_else(|_| py.None().into_bound(py));
    let plain = own("read") && own("write") && raw.get_type().is(module.socket_class.bind(py));
    let native = match (library, made) {
        (Some(library), Some(ssl)) if plain && !has_message_callback(&object) => {
            native_engine(library, ssl, &raw, notify)
        }
        _ => None,
    };
    let engine = match native {
        Some(native) => Engine::Native(native),
        None => {
            let owner = this.object().bind(py);
            let (incoming, outgoing) =
                (owner.getattr(Fallible("_incoming"))?, owner.getattr(Fallible("_outgoing"))?);
            let memory = module.memory_class.bind(py);
            let lends = plain && incoming.get_type().is(memory) && outgoing.get_type().is(memory);
            Engine::Object(Object::new(if plain { &raw } else { &object }, incoming, outgoing, lends)?)
        }
    };
    // A connection that has begun meanwhile keeps the engine that it has.
    let _ = this.engine.set(engine);
    Ok(())
}

/// The native engine for an SSL that was made on this thread just now, if `raw` owns it.
fn native_engine(
    library: &'static Library,
    ssl: Ssl,
    raw: &Bound<'_, PyAny>,
    notify: Notify,
) -> Option<Native> {
    // SAFETY: the SSL was made on this thread just now. The comparison shows that the socket object owns it, and so keeps
    // it.
    if unsafe { library.app_data(ssl) }.cast() != raw.as_ptr() {
        return None;
    }
    let io = Arc::new(Io::new(notify));
    // SAFETY: `raw` owns the SSL and is kept, and no other code has seen it yet.
    let attached = unsafe { library.attach(ssl, io.clone()) };
    attached.then(|| Native { library, ssl, io, raw: Slot::new(Some(raw.clone().into())) })
}

/// `SSLContext._msg_callback`, by whichever class it is.
fn has_message_callback(object: &Bound<'_, PyAny>) -> bool {
    let callback =
        object.getattr(Fallible("context")).and_then(|context| context.getattr(Fallible("_msg_callback")));
    callback.is_ok_and(|callback| !callback.is_none())
}

static TESTED: OnceLock<Result<&'static Library, String>> = OnceLock::new();

/// The library, if the self-test finds that the native engine works in this process; else the reason.
pub(super) fn tested(py: Python<'_>) -> Result<&'static Library, &'static str> {
    if let Some(known) = TESTED.get() {
        return known.as_ref().map(|library| *library).map_err(String::as_str);
    }
    let found = match self_test(py) {
        // Which says nothing of the library: the next connection tries again.
        Err(error) if error.is_instance_of::<PyMemoryError>(py) => return Err("out of memory"),
        found => found.map_err(|error| error.value(py).to_string()),
    };
    TESTED.get_or_init(|| found).as_ref().map(|library| *library).map_err(String::as_str)
}

/// Does everything that the native engine relies on once, without a peer and without a certificate.
fn self_test(py: Python<'_>) -> PyResult<&'static Library> {
    let fail = |reason: &str| exception::<PyRuntimeError>(reason);
    let file = py.import(Fallible("_ssl"))?.getattr(Fallible("__file__")).ok();
    let path = match file {
        Some(file) => Some(CString::new(file.extract::<String>()?)?),
        None => None,
    };
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
    let ssl_pointer = made.ok_or_else(|| fail("wrap_bio makes no SSL of the libssl that was found"))?;
    let raw = object.getattr(Fallible("_sslobj"))?;
    // SAFETY: the SSL was just made, and `object` keeps it for the time of this test; no other code knows it.
    unsafe {
        if library.app_data(ssl_pointer).cast() != raw.as_ptr() {
            return Err(fail("the SSL that was seen is not the SSLObject's"));
        }
        incoming.call_method1(Fallible("write"), (Fallible(&b"x"[..]),))?;
        if library.pending_input(ssl_pointer) != 1 {
            return Err(fail("the SSL that was seen does not read from the MemoryBIO"));
        }
    }
    let io = Arc::new(Io::new(Box::new(|| {})));
    // SAFETY: as above.
    if !unsafe { library.attach(ssl_pointer, io.clone()) } {
        return Err(fail("no BIO could be made"));
    }
    match object.call_method0(Fallible("do_handshake")) {
        Err(error) if is_again(py, &error) => {}
        Err(error) => return Err(error),
        Ok(_) => return Err(fail("a handshake without a peer came to an end")),
    }
    let hello = io.exchange_output(Vec::new(), false);
    if !hello.starts_with(&[0x16, 0x03, 0x01]) {
        return Err(fail("no ClientHello came out of the handshake"));
    }
    Ok(library)
}
