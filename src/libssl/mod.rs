//! Calls the OpenSSL that Python's `_ssl` module uses.
//!
//! The crate is not linked against OpenSSL. `_ssl`'s shared object is already loaded: `dlopen` with `RTLD_NOLOAD`
//! returns a handle to it, and `dlsym` on that handle searches its own dependencies. So this module and CPython call
//! the same functions, even if another library in the process exports the same names. (`dlopen(NULL)` could find
//! another OpenSSL, one that an extension module has loaded with RTLD_GLOBAL.)
//!
//! - [`library`]: the functions.
//! - [`capture`]: finds the `SSL*` of an object that `wrap_bio` makes, with OpenSSL's public ex_data callback.
//! - [`bio`]: the BIO that such an `SSL` uses instead of CPython's.
//! - [`buffer_policy`]: decides which connections retain OpenSSL's record [`buffers`] between two records.
//!
//! This module does not use Python. `transport::tls::choice` tests all of it before the first use, because an
//! interpreter may have a static OpenSSL without visible symbols, another TLS library, or none at all.

pub(crate) mod bio;
mod buffer_policy;
mod buffers;
pub(crate) mod capture;
pub(crate) mod library;

use std::ffi::{CStr, c_ulong};
use std::sync::OnceLock;

pub(crate) use bio::Io;
use library::{FUNCTIONS, Functions};
pub(crate) use library::{Library, Outcome, Ssl};

/// OpenSSL 1.1.1, the first version with all these functions.
const OLDEST: c_ulong = 0x1010_1000;

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

impl Library {
    /// Finds the libssl that the shared object at `path` uses; without a path, because `_ssl` is built into the
    /// interpreter, the libssl of the process. Looks only once.
    pub(crate) fn get(path: Option<&CStr>) -> Result<&'static Library, &'static str> {
        LIBRARY.get_or_init(|| open(path)).as_ref().map_err(String::as_str)
    }
}

/// Opens the library. It is never closed, so its functions stay valid.
fn open(path: Option<&CStr>) -> Result<Library, String> {
    let only_loaded = if path.is_some() { libc::RTLD_NOLOAD } else { 0 };
    // SAFETY: a C string or null. Nothing new is loaded, so no initialiser runs.
    let handle =
        unsafe { libc::dlopen(path.map_or(std::ptr::null(), CStr::as_ptr), libc::RTLD_LAZY | only_loaded) };
    if handle.is_null() {
        return Err("the shared object of _ssl is not loaded".to_owned());
    }
    // SAFETY: the names are OpenSSL's. The self-test checks that the functions behave as OpenSSL's.
    let functions = unsafe { Functions::find(handle)? };
    let functions = FUNCTIONS.get_or_init(|| functions);
    // SAFETY: no arguments.
    let version = unsafe { (functions.OpenSSL_version_num)() };
    if version < OLDEST {
        return Err(format!("OpenSSL {version:#x} is too old"));
    }
    capture::install(functions)?;
    let method = bio::make_method(functions)? as usize;
    Ok(Library { functions, method })
}
