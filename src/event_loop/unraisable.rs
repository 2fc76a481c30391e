//! The last resort for an error: `sys.unraisablehook`.

use crate::capi::error::{raise, take_unless_fatal};
use crate::capi::{Fatal, Raised, Ref};

/// Prints the error that is set, as one of `object`. A fatal one stays set.
#[cold]
pub(crate) fn unraisable(object: &Ref, raised: Raised) -> Result<(), Fatal> {
    let Raised = raised;
    raise(take_unless_fatal()?);
    object.write_unraisable();
    Ok(())
}
