//! `wakeloop.StreamReader` and `wakeloop.StreamWriter`.
//!
//! `wakeloop.StreamReader` is a Python class with two bases: the native [`reader`], and `asyncio.StreamReader`. So it
//! is an instance of asyncio's class, and all methods that are not native are asyncio's own code, with the same
//! attributes. `wakeloop.StreamWriter` is made in the same way with [`writer`] and [`writing`]. The protocol between
//! them and the transport is asyncio's Python code. `wakeloop._net.streams` makes the classes. A method that may wait
//! returns a [`call`], an awaitable. It reads the data with [`reading`], and waits for a future with [`waiter`]; a
//! [`long_read`] waits for all of its data.
//!
//! **Native or Python.** Unlike asyncio's methods, the native ones do not call each other by name: `readline` does not
//! call `self.readuntil`. This is right only if none of them is patched. So each native method first checks that the
//! object is [plain](Classes): an instance of exactly our class, which is unpatched, without attributes of its own. If
//! not, it calls asyncio's method.
//!
//! **`_buffer`.** Received data is in a [`store`]. asyncio has it in a `bytearray`, the attribute `_buffer`, which some
//! programs use. When Python code first reads `_buffer`, the bytearray is created, and has the data from then on.

mod call;
mod classes;
pub(crate) mod errors;
mod long_read;
mod reader;
mod reader_python;
mod reading;
mod store;
mod waiter;
mod writer;
mod writer_python;
mod writing;

use pyo3::prelude::*;
use pyo3::types::PyType;

pub(crate) use call::make_type as make_call_type;
use classes::{CLASSES, Classes, Derived};
pub(crate) use classes::{is_protocol, plain_reader, protocol_class};
pub(crate) use reader::Reader;
pub(crate) use reader_python::make_type as make_reader_type;
pub(crate) use waiter::wake;
pub(crate) use writer_python::make_type as make_writer_type;

use crate::capi::Fallible;
use crate::capi::class::add_methods;
use crate::capi::function::are_coroutines;
use crate::compat::Class;

/// The methods that native code replaces. A reader with a patch of one of them is not plain.
const READER_METHODS: [&str; 9] = [
    "feed_data",
    "_wakeup_waiter",
    "_wait_for_data",
    "_maybe_resume_transport",
    "read",
    "readexactly",
    "readuntil",
    "readline",
    "exception",
];
const WRITER_METHODS: [&str; 3] = ["write", "writelines", "drain"];
const TRANSPORT_METHODS: [&str; 3] = ["write", "writelines", "is_closing"];
const PROTOCOL_METHODS: [&str; 3] = ["data_received", "_stream_reader", "_drain_helper"];

/// Records the classes that `wakeloop._net.streams` has made, and the names of a protocol's attributes. Adds the native
/// methods to these classes once more, because CPython calls a native method fastest on instances of the class that
/// defines it.
#[pyfunction]
pub(crate) fn adopt_streams(
    py: Python<'_>,
    reader: Bound<'_, PyType>,
    writer: Bound<'_, PyType>,
    protocol: (Bound<'_, PyAny>, Vec<String>),
) -> PyResult<()> {
    add_methods(&reader, reader_python::METHODS)?;
    are_coroutines(&reader, &["__anext__"])?;
    add_methods(&writer, writer_python::METHODS)?;
    let class = |kind, methods, attributes| Class::init(kind, methods, attributes).map_err(PyErr::from);
    let streams = py.import(Fallible("asyncio.streams"))?;
    CLASSES.set(Classes {
        reader: Derived::init(reader.into_any(), &READER_METHODS)?,
        writer: Derived::init(writer.into_any(), &WRITER_METHODS)?,
        transport: class(
            py.import(Fallible("wakeloop._core"))?.getattr(Fallible("StreamTransport"))?,
            &TRANSPORT_METHODS,
            &[],
        )?,
        protocol: class(protocol.0, &PROTOCOL_METHODS, &protocol.1)?,
        asyncio_reader: streams.getattr(Fallible("StreamReader"))?.into(),
        asyncio_writer: streams.getattr(Fallible("StreamWriter"))?.into(),
    });
    Ok(())
}
