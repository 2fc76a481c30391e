//! The interpreter, with this crate as `wakeloop._core`, and the models in Python.
#![allow(clippy::disallowed_methods, reason = "the fuzzer has memory")]

use std::ffi::CString;
use std::sync::LazyLock;

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use socket2::{SockAddr, SockAddrStorage};

use crate::capi::{Ref, sockaddr};
use crate::libssl::Library;
use crate::module::_core;

static START: LazyLock<()> = LazyLock::new(|| {
    pyo3::append_to_inittab!(_core);
    Python::initialize();
    Python::attach(|py| {
        let native = PyModule::new(py, "tests.fuzz.native")?;
        native.add_function(wrap_pyfunction!(from_python, &native)?)?;
        native.add_function(wrap_pyfunction!(to_python, &native)?)?;
        let modules = py.import("sys")?.getattr("modules")?;
        modules.set_item("tests.fuzz.native", native)?;
        modules.set_item("wakeloop._core", py.import("_core")?)
    })
    .expect("the interpreter starts");
});

/// Calls `check` of the module of this name with these arguments.
pub(crate) fn check(name: &str, arguments: impl for<'py> PyCallArgs<'py>) {
    LazyLock::force(&START);
    Python::attach(|py| {
        let checked = (|| py.import(format!("tests.fuzz.{name}"))?.getattr("check")?.call1(arguments))();
        if let Err(error) = checked {
            error.print(py);
            panic!("{name} differs from its model");
        }
    });
}

/// The OpenSSL that Python's `ssl` uses.
pub(crate) fn openssl() -> &'static Library {
    LazyLock::force(&START);
    static LIBRARY: LazyLock<&'static Library> = LazyLock::new(|| {
        let path: CString = Python::attach(|py| py.import("_ssl")?.getattr("__file__")?.extract())
            .map(|path: String| CString::new(path).expect("a path has no zero"))
            .expect("Python has ssl");
        Library::get(Some(&path)).expect("an OpenSSL that we can use")
    });
    *LIBRARY
}

/// The kernel's form of an address, as bytes.
#[pyfunction]
fn from_python<'py>(py: Python<'py>, family: i32, address: Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    let address = sockaddr::from_python(family, &Ref::from(address))?;
    // SAFETY: the address is as long as it says.
    let bytes = unsafe { std::slice::from_raw_parts(address.as_ptr().cast(), address.len() as usize) };
    Some(PyBytes::new(py, bytes))
}

/// Python's form of an address that the kernel has written.
#[pyfunction]
fn to_python<'py>(py: Python<'py>, address: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let mut storage = SockAddrStorage::zeroed();
    assert!(address.len() <= storage.size_of() as usize);
    // SAFETY: the storage has room for these bytes, and any bytes are an address.
    let address = unsafe {
        std::ptr::copy_nonoverlapping(address.as_ptr(), (&raw mut storage).cast::<u8>(), address.len());
        SockAddr::new(storage, address.len() as libc::socklen_t)
    };
    Ok(sockaddr::to_python(&address)?.bind(py).clone())
}
