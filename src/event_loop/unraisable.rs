//! The last resort for an error: `sys.unraisablehook`.

use pyo3::ffi;

use crate::capi::error::{raise, take_unless_fatal};
use crate::capi::{Fatal, Raised, Ref};

/// Prints the error that is set, as one of `object`. A fatal one stays set.
#[cold]
pub(crate) fn unraisable(object: &Ref, raised: Raised) -> Result<(), Fatal> {
    let Raised = raised;
    let exception = take_unless_fatal()?;
    raise(exception);
    // SAFETY: an error is set; the call prints and clears it.
    unsafe { ffi::PyErr_WriteUnraisable(object.as_ptr()) };
    Ok(())
}
