//! What Python awaits and Rust runs: operations on the runtime's workers, without the GIL.

pub(crate) mod blocking;
pub(crate) mod echo;
pub(crate) mod listener;
pub(crate) mod lookup;
pub(crate) mod metrics;
mod parcel;
pub(crate) mod sleep;
pub(crate) mod tcp_stream;
pub(crate) mod udp;

use pyo3::ffi;

use crate::capi::error::{raise, take_exception};
use crate::transport::address;

/// ResourceWarning for what nobody closed. May be called while an exception is set.
fn warn_unclosed(what: &str) {
    let Ok(text) = std::ffi::CString::new(format!("unclosed {what}")) else { return };
    // SAFETY: called by destructors, with the GIL held; what is set is kept across the warning.
    unsafe {
        let pending = (!ffi::PyErr_Occurred().is_null()).then(take_exception);
        if ffi::PyErr_WarnEx(ffi::PyExc_ResourceWarning, text.as_ptr(), 1) < 0 {
            ffi::PyErr_WriteUnraisable(std::ptr::null_mut());
        }
        if let Some(exception) = pending {
            raise(exception);
        }
    }
}
