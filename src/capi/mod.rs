//! A thin layer over CPython's raw C API: references, calls, classes, errors.
//!
//! pyo3 is used for code that runs per loop or per connection. Code that runs per callback or per packet uses this
//! room instead, because that saves several hundred instructions a call: it has plain vectorcalls, heap types with
//! freelists, and method tables of `METH_FASTCALL` functions.
//!
//! Every function in this room that takes or returns a Python pointer must be called on a thread that is attached to the
//! interpreter. With a GIL that is one thread at a time. Without one, [`section`] guards the fields of native objects, and
//! [`shared`] has the ways to look at what other threads may change.

pub(crate) mod arguments;
pub(crate) mod audit;
pub(crate) mod buffer;
pub(crate) mod byte_array;
pub(crate) mod call;
pub(crate) mod callable;
pub(crate) mod class;
pub(crate) mod collector;
pub(crate) mod coroutine;
pub(crate) mod error;
pub(crate) mod exceptions;
pub(crate) mod fallible;
pub(crate) mod frame;
pub(crate) mod function;
pub(crate) mod function_class;
pub(crate) mod future;
pub(crate) mod imports;
pub(crate) mod inspect;
pub(crate) mod loop_cell;
pub(crate) mod methods;
pub(crate) mod native;
pub(crate) mod object;
pub(crate) mod once;
pub(crate) mod pending;
pub(crate) mod raised;
pub(crate) mod recycle;
pub(crate) mod redirect;
pub(crate) mod returned;
pub(crate) mod section;
pub(crate) mod shared;
pub(crate) mod sockaddr;
pub(crate) mod socket;
pub(crate) mod threads;

pub(crate) use arguments::Arguments;
pub(crate) use exceptions::Exception;
pub(crate) use fallible::Fallible;
pub(crate) use native::{Native, This};
pub(crate) use object::{Borrowed, Ref, Slot};
pub(crate) use raised::{Fatal, Raised};
