//! Calls into `wakeloop._support`, where the cold paths live in Python.

use pyo3::Python;

use crate::capi::imports;
use crate::capi::{Borrowed, Raised, Ref};

/// Calls the function of this name.
#[cold]
pub(super) fn call_support(
    py: Python<'_>,
    function: &str,
    arguments: &[Borrowed<'_>],
) -> Result<Ref, Raised> {
    Ref::from(imports::support(py, function)?).call(arguments)
}
