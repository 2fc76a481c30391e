//! Errors that can only be passed to `sys.unraisablehook`.

use crate::capi::error::{raise, take_unless_fatal};
use crate::capi::{Fatal, Raised, Ref};

/// Passes the error to `sys.unraisablehook`, with `object`. A fatal error stays set.
#[cold]
pub(crate) fn unraisable(object: &Ref, raised: Raised) -> Result<(), Fatal> {
    let Raised = raised;
    let Raised = raise(take_unless_fatal()?);
    object.write_unraisable();
    Ok(())
}
