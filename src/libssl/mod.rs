//! The OpenSSL that this process's `_ssl` module uses, called directly.
//!
//! Nothing is linked: [`library`] asks the loader for the very libssl that `_ssl` was linked with, so what
//! is called here is what CPython calls. [`capture`] learns the `SSL*` of an object that `wrap_bio` makes,
//! through OpenSSL's public ex_data callback. [`bio`] is what such an `SSL` reads from and writes to: memory
//! of ours instead of CPython's. [`buffers`] decides which of them keep OpenSSL's own buffers between two records.
//!
//! This room knows nothing of Python. Whoever uses it checks first that all of it works
//! (`transport::tls::engine`), because an OpenSSL can be hidden, foreign, or none at all.

pub(crate) mod bio;
mod buffers;
pub(crate) mod capture;
pub(crate) mod library;

pub(crate) use bio::Io;
pub(crate) use library::{Library, Outcome, Ssl};
