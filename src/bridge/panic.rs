//! The Python exception for a Rust panic.

use pyo3::exceptions::PyException;

pyo3::create_exception!(
    wakeloop,
    RuntimePanic,
    PyException,
    "A panic in Rust code. The process continues, and the operation did not finish."
);
