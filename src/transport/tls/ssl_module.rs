//! What the engines need of Python's `ssl` module.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::Fallible;

/// What the engine needs of the `ssl` module.
pub(super) struct Module {
    /// asyncio's `SSLAgainErrors`.
    again: Py<PyAny>,
    pub(super) object_class: Py<PyAny>,
    pub(super) socket_class: Py<PyAny>,
    pub(super) memory_class: Py<PyAny>,
    /// The getter of `MemoryBIO.pending`.
    pub(super) pending: Option<ffi::getter>,
}

pub(super) fn module(py: Python<'_>) -> PyResult<&'static Module> {
    static MODULE: pyo3::sync::PyOnceLock<Module> = pyo3::sync::PyOnceLock::new();
    MODULE.get_or_try_init(py, || {
        let ssl = py.import(Fallible("ssl"))?;
        let memory_class = ssl.getattr(Fallible("MemoryBIO"))?;
        Ok(Module {
            again: py.import(Fallible("asyncio.sslproto"))?.getattr(Fallible("SSLAgainErrors"))?.unbind(),
            object_class: ssl.getattr(Fallible("SSLObject"))?.unbind(),
            socket_class: py.import(Fallible("_ssl"))?.getattr(Fallible("_SSLSocket"))?.unbind(),
            pending: getter(&memory_class, "pending")?,
            memory_class: memory_class.unbind(),
        })
    })
}

/// Is it one of the errors that mean "try again later"?
pub(super) fn is_again(py: Python<'_>, error: &PyErr) -> bool {
    module(py).is_ok_and(|module| error.matches(py, module.again.bind(py)).unwrap_or(false))
}

/// The C function behind an attribute of a class that Python code cannot change, and that needs nothing more.
fn getter(class: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<ffi::getter>> {
    let found = class.getattr(Fallible(name))?;
    // SAFETY: a class and its attribute, which is looked into if it is what C code makes for a getter; that lives as
    // long as the class, which the module keeps.
    unsafe {
        let kind = class.as_ptr().cast::<ffi::PyTypeObject>();
        if ffi::PyType_HasFeature(kind, ffi::Py_TPFLAGS_IMMUTABLETYPE) == 0
            || ffi::Py_TYPE(found.as_ptr()) != &raw mut ffi::PyGetSetDescr_Type
        {
            return Ok(None);
        }
        let definition = (*found.as_ptr().cast::<ffi::PyGetSetDescrObject>()).d_getset;
        Ok((*definition).get.filter(|_| (*definition).closure.is_null()))
    }
}
