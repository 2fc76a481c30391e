//! StreamReader and StreamWriter with native insides.
//!
//! `wakeloop.StreamReader` is a Python class of two bases: the native [`reader`] here and `asyncio.StreamReader`
//! behind it, so that every isinstance holds and whatever is not native is asyncio's own code, working
//! on the same attributes. `wakeloop.StreamWriter` likewise, with [`writer`]; the protocol between them and the
//! transport is asyncio's in Python. `wakeloop._streams` puts the classes together. A method that waits gives a
//! [`call`](self::call), an awaitable, which looks at the data by [`reading`] and waits for a future, the [`waiter`].
//!
//! **Native or Python.** The native methods take each other's place in asyncio's code: `readline` does not call
//! `self.readuntil`. That is only right while none of them is replaced, so every native
//! method first checks whether the object is [plain](Classes): of the very class, which is as it
//! was, without attributes of its own. If not, asyncio's method is called instead.
//!
//! **Looking inside.** What was received lies in a [`store`]. Asyncio keeps it in the `bytearray` `_buffer`, and
//! some programs use that. The bytearray is made when Python code first reads `_buffer`, and holds the
//! data from then on.

mod call;
mod classes;
pub(crate) mod errors;
mod reader;
mod reader_python;
mod reading;
mod store;
mod waiter;
mod writer;
mod writer_python;

use pyo3::prelude::*;
use pyo3::types::PyType;

pub(crate) use call::make_type as make_call_type;
use classes::{CLASSES, Classes};
pub(crate) use classes::{is_protocol, plain_reader, protocol_class};
pub(crate) use reader::Reader;
pub(crate) use reader_python::make_type as make_reader_type;
pub(crate) use waiter::wake;
pub(crate) use writer_python::make_type as make_writer_type;

use crate::capi::Fallible;
use crate::capi::class::add_methods;
use crate::compat::Class;

/// What native code does in the place of these methods must not be asked of any other.
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

/// Takes the classes that `wakeloop._streams` has made, and the names of the attributes that a protocol has. The
/// interpreter calls a native method fastest on instances of the very class that it was made for, so they get their own.
#[pyfunction]
pub(crate) fn adopt_streams(
    py: Python<'_>,
    reader: Bound<'_, PyType>,
    writer: Bound<'_, PyType>,
    protocol: (Bound<'_, PyAny>, Vec<String>),
) -> PyResult<()> {
    add_methods(&reader, reader_python::METHODS)?;
    add_methods(&writer, writer_python::METHODS)?;
    let class = |kind, methods, attributes| Class::init(kind, methods, attributes).map_err(PyErr::from);
    let streams = py.import(Fallible("asyncio.streams"))?;
    CLASSES.set(Classes {
        reader: class(reader.into_any(), &READER_METHODS, &[])?,
        writer: class(writer.into_any(), &WRITER_METHODS, &[])?,
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
