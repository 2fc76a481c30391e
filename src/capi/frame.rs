//! Frames for native code, so that tools that show stacks can name it.

use std::ffi::CString;

use pyo3::ffi;

use super::error::Raised;
use super::fallible::string;
use super::inspect::status;
use super::object::Ref;

/// A frame of a function of this name. It has no source: the file is `<wakeloop>`, and the line is 0.
#[cold]
pub(crate) fn native_frame(name: &str) -> Result<Ref, Raised> {
    // The names are literals of this crate, without a null character.
    let name = CString::new(name).unwrap_or_default();
    let (key, module) = (string("__name__")?, string("wakeloop")?);
    // SAFETY: each call takes live objects, and returns an owned reference or null with an error set. The thread state
    // is that of this thread, which is attached.
    unsafe {
        let owned = |object| Ref::from_owned(object).ok_or(Raised);
        let code = owned(ffi::PyCode_NewEmpty(c"<wakeloop>".as_ptr(), name.as_ptr(), 0).cast())?;
        let globals = owned(ffi::PyDict_New())?;
        status(ffi::PyDict_SetItem(globals.as_ptr(), key.as_ptr(), module.as_ptr()))?;
        let state = ffi::PyThreadState_Get();
        owned(ffi::PyFrame_New(state, code.as_ptr().cast(), globals.as_ptr(), std::ptr::null_mut()).cast())
    }
}
