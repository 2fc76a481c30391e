//! The exception that a Rust panic becomes.

use pyo3::exceptions::PyException;

pyo3::create_exception!(
    wakeloop,
    RuntimePanic,
    PyException,
    "A panic in Rust code, caught at the border to Python. The process goes on; the operation did not finish."
);
