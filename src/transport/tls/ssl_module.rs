//! The objects of Python's `ssl` module that the engines need.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

use crate::capi::Fallible;
use crate::capi::error::exception;
use crate::capi::once::Once;
use crate::compat::Class;

/// The objects.
pub(super) struct Module {
    /// asyncio's `SSLAgainErrors`.
    again: Py<PyAny>,
    /// `SSLObject`, with the methods that the engines replace.
    pub(super) object_class: Class,
    pub(super) socket_class: Py<PyAny>,
    pub(super) memory_class: Py<PyAny>,
}

static MODULE: Once<Module> = Once::new();

/// Looks the objects up. Called once, at import, so that later patches are noticed. asyncio has imported `ssl` by then,
/// unless this Python has none.
pub(super) fn init(py: Python<'_>) -> PyResult<()> {
    let (ssl, native) = (py.import(Fallible("ssl"))?, py.import(Fallible("_ssl"))?);
    MODULE.set(Module {
        again: py.import(Fallible("asyncio.sslproto"))?.getattr(Fallible("SSLAgainErrors"))?.unbind(),
        object_class: Class::of(ssl.getattr(Fallible("SSLObject"))?.into(), &["read", "write"], false)?,
        socket_class: native.getattr(Fallible("_SSLSocket"))?.unbind(),
        memory_class: native.getattr(Fallible("MemoryBIO"))?.unbind(),
    });
    Ok(())
}

/// The objects. Raises if this Python has no `ssl`.
pub(super) fn module(py: Python<'_>) -> PyResult<&'static Module> {
    if MODULE.get().is_none() {
        init(py)?;
    }
    MODULE.get().ok_or_else(|| exception::<PyImportError>("the ssl module could not be loaded"))
}

/// Does the error mean that the call has to wait for the peer (`SSLWantReadError` and the like)?
pub(super) fn is_again(py: Python<'_>, error: &PyErr) -> bool {
    module(py).is_ok_and(|module| error.matches(py, module.again.bind(py)).unwrap_or(false))
}
