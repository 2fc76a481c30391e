//! The one room that speaks CPython's raw C API.
//!
//! pyo3 serves everything that runs per loop or per connection. What runs per callback or per packet
//! goes through here instead, because the measured difference is several hundred instructions a call:
//! plain vectorcalls, heap types with freelists and method tables of `METH_FASTCALL` functions.
//!
//! Every function in this room that takes or returns a Python pointer must be called with the GIL held.
//! The module is declared `gil_used = true`: the ready queue, the freelists and the identity test on
//! `_asyncio`'s keyword tuple all lean on it.

pub(crate) mod args;
pub(crate) mod buffer;
pub(crate) mod call;
pub(crate) mod collected;
pub(crate) mod context;
pub(crate) mod coroutine;
pub(crate) mod error;
pub(crate) mod fallible;
pub(crate) mod file;
pub(crate) mod freelist;
pub(crate) mod future;
pub(crate) mod imports;
mod inline_values;
pub(crate) mod lent_bytes;
pub(crate) mod module_dict;
pub(crate) mod object;
pub(crate) mod pristine;
pub(crate) mod sockaddr;
pub(crate) mod socket;
pub(crate) mod spare_bytes;
pub(crate) mod stop;
pub(crate) mod threads;
pub(crate) mod types;

pub(crate) use args::Args;
pub(crate) use error::{Fatal, Raised};
pub(crate) use fallible::Fallible;
pub(crate) use object::{Ref, Slot};
