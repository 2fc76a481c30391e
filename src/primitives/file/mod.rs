//! `wakeloop.File`: a file that tasks read and write.
//!
//! | file | what it is |
//! |---|---|
//! | `sys` | the system calls |
//! | `buffered` | a descriptor with data that was read ahead, or that waits to be written |
//! | `turn` | whose turn it is to use the file |
//! | `shared` | the part that threads of the blocking pool use: `buffered` under a lock, and `turn` |
//! | `turn_guard` | the right to use the file |
//! | `cancel` | how the wait of a read for data ends when it is cancelled |
//! | `job` | the part of an operation that a thread of the pool does |
//! | `class` | the file as a Python object |
//! | `call` | one awaitable operation |
//! | `methods` | the methods that make the operations |
//!
//! A read first looks into the buffer, then asks the system for what is in the page cache, on the loop's thread. What
//! is not there, and everything that is not a regular file, is read by a thread of the blocking pool, without the GIL.
//! A write goes to the buffer, and a thread of the pool writes the buffer when it is full.
//!
//! The descriptor belongs to an `io.FileIO`, which has opened it and closes it. Every job keeps it alive.

mod buffered;
mod call;
mod cancel;
mod class;
mod job;
mod methods;
mod shared;
mod sys;
mod turn;
mod turn_guard;

use pyo3::prelude::*;

use crate::capi::Native;
use crate::capi::class::add_methods;

use class::{_open_file, _spend_items, File};

/// Adds the class. This is done at import, because pyo3 panics if it cannot make a type at its first use.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    call::make_type(py)?;
    let class = py.get_type::<File>();
    // SAFETY: pyo3 makes every instance, and puts the Rust value right behind the `PyObject`: `PyClassObjectContents` is
    // `repr(C)` and begins with it, for a class without a base class.
    unsafe { <File as Native>::class().set(&class) };
    add_methods(&class, methods::METHODS)?;
    module.add_class::<File>()?;
    module.add_function(wrap_pyfunction!(_spend_items, module)?)?;
    module.add_function(wrap_pyfunction!(_open_file, module)?)
}
