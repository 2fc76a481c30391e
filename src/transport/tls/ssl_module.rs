//! The objects of Python's `ssl` module that the engines need.

use pyo3::prelude::*;

use crate::capi::Fallible;

/// The objects.
pub(super) struct Module {
    /// asyncio's `SSLAgainErrors`.
    again: Py<PyAny>,
    pub(super) object_class: Py<PyAny>,
    pub(super) socket_class: Py<PyAny>,
    pub(super) memory_class: Py<PyAny>,
}

pub(super) fn module(py: Python<'_>) -> PyResult<&'static Module> {
    static MODULE: pyo3::sync::PyOnceLock<Module> = pyo3::sync::PyOnceLock::new();
    MODULE.get_or_try_init(py, || {
        let ssl = py.import(Fallible("ssl"))?;
        Ok(Module {
            again: py.import(Fallible("asyncio.sslproto"))?.getattr(Fallible("SSLAgainErrors"))?.unbind(),
            object_class: ssl.getattr(Fallible("SSLObject"))?.unbind(),
            socket_class: py.import(Fallible("_ssl"))?.getattr(Fallible("_SSLSocket"))?.unbind(),
            memory_class: ssl.getattr(Fallible("MemoryBIO"))?.unbind(),
        })
    })
}

/// Does the error mean that the call has to wait for the peer (`SSLWantReadError` and the like)?
pub(super) fn is_again(py: Python<'_>, error: &PyErr) -> bool {
    module(py).is_ok_and(|module| error.matches(py, module.again.bind(py)).unwrap_or(false))
}
