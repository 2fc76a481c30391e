//! The OpenSSL that this process's `_ssl` module uses, called directly.
//!
//! Nothing is linked. `_ssl`'s shared object is loaded already: `dlopen` with `RTLD_NOLOAD` gives a handle to it, and
//! `dlsym` on that handle searches its own dependencies, whatever else in the process exports the same names. (Another
//! OpenSSL, loaded with RTLD_GLOBAL by some extension, is what `dlopen(NULL)` would find.) So what is called here is what
//! CPython calls.
//!
//! - [`library`]: the functions.
//! - [`capture`]: learns the `SSL*` of an object that `wrap_bio` makes, through OpenSSL's public ex_data callback.
//! - [`bio`]: what such an `SSL` reads from and writes to, memory of ours instead of CPython's.
//! - [`keepers`]: decides which connections keep OpenSSL's own [`buffers`] between two records.
//!
//! This room knows nothing of Python. Its user checks first that all of it works (`transport::tls::choice`), because an
//! OpenSSL can be hidden, foreign, or none at all.

pub(crate) mod bio;
mod buffers;
pub(crate) mod capture;
mod keepers;
pub(crate) mod library;

use std::ffi::{CStr, c_ulong};
use std::sync::OnceLock;

pub(crate) use bio::Io;
use library::{FUNCTIONS, Functions};
pub(crate) use library::{Library, Outcome, Ssl};

/// The first version with all that is called here.
const OLDEST: c_ulong = 0x1010_1000;

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

impl Library {
    /// Finds the libssl behind the shared object at `path`, or, for an `_ssl` that is part of the interpreter,
    /// the one of the process. Looked for once.
    pub(crate) fn get(path: Option<&CStr>) -> Result<&'static Library, &'static str> {
        LIBRARY.get_or_init(|| open(path)).as_ref().map_err(String::as_str)
    }
}

/// The handle to the library is kept for ever, and so is the library.
fn open(path: Option<&CStr>) -> Result<Library, String> {
    let flags = match path {
        Some(_) => libc::RTLD_LAZY | libc::RTLD_NOLOAD,
        None => libc::RTLD_LAZY,
    };
    // SAFETY: a C string or null; nothing is loaded that is not there already.
    let handle = unsafe { libc::dlopen(path.map_or(std::ptr::null(), CStr::as_ptr), flags) };
    if handle.is_null() {
        return Err("the shared object of _ssl is not loaded".to_owned());
    }
    // SAFETY: OpenSSL's names. That they are OpenSSL's functions is what the self-test goes on to find out.
    let functions = unsafe { Functions::find(handle)? };
    let functions = FUNCTIONS.get_or_init(|| functions);
    // SAFETY: no arguments.
    let version = unsafe { (functions.OpenSSL_version_num)() };
    if version < OLDEST {
        return Err(format!("OpenSSL {version:#x} is too old"));
    }
    capture::listen(functions)?;
    let method = bio::make_method(functions)? as usize;
    Ok(Library { functions, method })
}
