//! Calls into `wakeloop._support`, which has the Python code for cold paths.

use pyo3::Python;

use crate::capi::imports;
use crate::capi::{Borrowed, Raised, Ref};

/// Calls a function of `wakeloop._support`.
#[cold]
pub(crate) fn call_support(
    py: Python<'_>,
    function: &str,
    arguments: &[Borrowed<'_>],
) -> Result<Ref, Raised> {
    Ref::from(imports::support(py, function)?).call(arguments)
}
