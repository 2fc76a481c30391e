//! StreamReader and StreamWriter with native insides.
//!
//! `wakeloop.StreamReader` is a Python class of two bases: the native [`reader`] here and `asyncio.StreamReader`
//! behind it, so that every isinstance holds and whatever is not native is asyncio's own code, working
//! on the same attributes. `wakeloop.StreamWriter` likewise, with [`writer`]; the protocol between them and the
//! transport is asyncio's in Python. `wakeloop._streams` puts the classes together. A method that waits gives a
//! [`call`](self::call), an awaitable, which looks at the data by [`reading`] and waits for a future, the [`waiter`].
//!
//! **Native or Python.** The native methods take each other's place in asyncio's code: `readline` does not call
//! `self.readuntil`. That is only right where nobody has put anything else in the place of one, so every native
//! method begins with the question whether the object is [plain](Classes): of the very class, which is as it
//! was, without attributes of its own. If not, asyncio's method is called instead.
//!
//! **Looking inside.** What was received lies in a [`store`]. Asyncio keeps it in the `bytearray` `_buffer`, and
//! some programs reach for that. The first time somebody asks for `_buffer` it is made, and from then on it is
//! where the data lies.

/// Getter and setter of an attribute that is a slot of the native object; `None` and deleting empty it.
macro_rules! slot_attribute {
    ($kind:ident: $get:ident, $set:ident, $field:ident) => {
        unsafe extern "C" fn $get(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
            // SAFETY: the attribute sits on this kind of object.
            unsafe { $kind::of(object) }.$field.get_or_none()
        }

        unsafe extern "C" fn $set(
            object: *mut ffi::PyObject,
            value: *mut ffi::PyObject,
            _: *mut c_void,
        ) -> c_int {
            // SAFETY: as above; a borrowed value, or null to delete it.
            unsafe {
                let value = Ref::from_nullable(value).filter(|value| value.as_ptr() != ffi::Py_None());
                $kind::of(object).$field.set(value);
            }
            0
        }
    };
}

mod call;
mod reader;
mod reader_python;
mod reading;
mod store;
mod waiter;
mod writer;

use std::ffi::CString;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

pub(crate) use call::make_type as make_call_type;
pub(crate) use reader::Reader;
pub(crate) use reader_python::make_type as make_reader_type;
pub(crate) use store::extend;
pub(crate) use waiter::wake;
pub(crate) use writer::make_type as make_writer_type;

use crate::capi::call::call_keywords;
use crate::capi::error::fetch;
use crate::capi::once::Once;
use crate::capi::types::add_methods;
use crate::capi::{Args, Fallible, Raised, Ref};
use crate::compat::Class;

/// The classes that Python has made of ours, and asyncio's behind them.
#[derive(Debug)]
pub(crate) struct Classes {
    reader: Class,
    writer: Class,
    transport: Class,
    protocol: Class,
    asyncio_reader: Ref,
    asyncio_writer: Ref,
}

static CLASSES: Once<Classes> = Once::new();

/// What a protocol is asked for natively, by its place among the names that `wakeloop._streams` gives.
const PAUSED: usize = 1;
const CONNECTION_LOST: usize = 2;

/// Is `protocol` of the class that connects our readers with their transports?
#[inline(always)]
pub(crate) fn is_protocol(protocol: *mut ffi::PyObject) -> bool {
    CLASSES.get().is_some_and(|classes| classes.protocol.is_class_of(protocol))
}

/// The class of our protocols.
#[inline(always)]
pub(crate) fn protocol_class() -> Option<&'static Class> {
    CLASSES.get().map(|classes| &classes.protocol)
}

/// The fields of a plain reader of ours.
#[inline(always)]
pub(crate) fn plain_reader<'a>(object: *mut ffi::PyObject) -> Option<&'a Reader> {
    let classes = CLASSES.get()?;
    if !classes.reader.is_class_of(object) || !classes.reader.is_unpatched() {
        return None;
    }
    // SAFETY: of the class that Python has made of the native one.
    let reader = unsafe { Reader::of(object) };
    reader.is_untouched().then_some(reader)
}

/// Calls a method of asyncio's class on an object of ours.
#[cold]
fn inherited(class: &Ref, name: &str, object: *mut ffi::PyObject, arguments: Args) -> Result<Ref, Raised> {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: a live class and a C string; an owned reference or null with an error.
    let method = unsafe { Ref::from_owned(ffi::PyObject_GetAttrString(class.as_ptr(), name.as_ptr())) };
    let mut stack = vec![std::ptr::null_mut(), object];
    stack.extend_from_slice(arguments.rest(0));
    let positional = stack.len() - 1;
    stack.extend((0..arguments.keywords()).map(|index| arguments.keyword_value(index)));
    // SAFETY: the positional values, then one value per name, behind the spare slot.
    unsafe { call_keywords(&method.ok_or(Raised)?, stack.as_ptr().add(1), positional, arguments.names()) }
}

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
    add_methods(&writer, writer::METHODS)?;
    let class =
        |kind, methods, attributes| Class::init(kind, methods, attributes).map_err(|Raised| fetch(py));
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
