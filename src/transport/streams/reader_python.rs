//! The native StreamReader as Python sees it: its methods, asyncio's attributes, and the type.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::call::{Call, Kind};
use super::reader::Reader;
use super::store::Store;
use super::{CLASSES, inherited, plain_reader};
use crate::capi::buffer::{Buffer, bytes_slice};
use crate::capi::call::guard;
use crate::capi::collected::{clear, dealloc, traverse};
use crate::capi::error::{self, raise_message};
use crate::capi::fallible::string;
use crate::capi::imports::support;
use crate::capi::inspect::given_truth;
use crate::capi::types::{Attribute, Method, TypeSpec};
use crate::capi::{Args, Fallible, Raised, Ref};

/// asyncio's default limit.
const LIMIT: usize = 64 * 1024;

/// Calls asyncio's method of the name instead.
fn pass_on(object: *mut ffi::PyObject, name: &str, arguments: Args) -> Result<Ref, Raised> {
    match CLASSES.get() {
        Some(classes) => inherited(&classes.asyncio_reader, name, object, arguments),
        None => Err(unready()),
    }
}

#[cold]
fn unready() -> Raised {
    // SAFETY: reading a static of the interpreter.
    raise_message(unsafe { ffi::PyExc_RuntimeError }, "wakeloop is not imported completely");
    Raised
}

/// The frame of a method that native code has for plain readers: `native` gives the awaitable's kind, or
/// nothing if the arguments are out of the ordinary.
#[inline(always)]
fn reading(
    object: *mut ffi::PyObject,
    arguments: Args,
    name: &'static str,
    native: impl FnOnce(Args) -> Result<Option<Kind>, Raised>,
) -> *mut ffi::PyObject {
    guard(|| {
        let made = match plain_reader(object) {
            Some(_) => match native(arguments) {
                Ok(Some(kind)) => Call::create(object, kind),
                Ok(None) => pass_on(object, name, arguments),
                Err(raised) => Err(raised),
            },
            None => pass_on(object, name, arguments),
        };
        made.map_or(null_mut(), Ref::into_ptr)
    })
}

/// An ordinary int.
#[inline(always)]
fn number(value: *mut ffi::PyObject) -> Option<isize> {
    // SAFETY: a live object; an int that is too large sets an error, which is cleared.
    unsafe {
        if ffi::PyLong_CheckExact(value) == 0 {
            return None;
        }
        let number = ffi::PyLong_AsSsize_t(value);
        if number == -1 && !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(number)
    }
}

unsafe extern "C" fn read(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the arguments of this call.
    reading(object, unsafe { Args::new(values, count, names) }, "read", |arguments| {
        let [size] = arguments.bind("StreamReader.read", ["n"], 0)?;
        let size = if size.is_null() { Some(-1) } else { number(size) };
        Ok(size.map(|size| if size < 0 { Kind::ReadAll(Vec::new()) } else { Kind::Read(size as usize) }))
    })
}

unsafe extern "C" fn readexactly(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the arguments of this call.
    reading(object, unsafe { Args::new(values, count, names) }, "readexactly", |arguments| {
        Ok(number(arguments.one("StreamReader.readexactly", "n")?).map(Kind::Exactly))
    })
}

unsafe extern "C" fn readline(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    reading(object, no_arguments(), "readline", |_| Ok(Some(Kind::Line)))
}

unsafe extern "C" fn readuntil(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the arguments of this call.
    reading(object, unsafe { Args::new(values, count, names) }, "readuntil", |arguments| {
        let [separator] = arguments.bind("StreamReader.readuntil", ["separator"], 0)?;
        if separator.is_null() {
            return Ok(Some(Kind::Until(Vec::new())));
        }
        Ok(separators(separator).map(Kind::Until))
    })
}

/// A separator, or a tuple of them with the shortest first; nothing if asyncio has to say what is wrong.
fn separators(given: *mut ffi::PyObject) -> Option<Vec<Ref>> {
    // SAFETY: live objects; a tuple's items live as long as it does. What is collected is bytes and not empty.
    unsafe {
        let mut list = Vec::new();
        if cfg!(Py_3_13) && ffi::PyTuple_CheckExact(given) != 0 {
            for index in 0..ffi::PyTuple_GET_SIZE(given) {
                list.push(Ref::from_borrowed(ffi::PyTuple_GET_ITEM(given, index)));
            }
        } else {
            list.push(Ref::from_borrowed(given));
        }
        let usable =
            |item: &Ref| ffi::PyBytes_CheckExact(item.as_ptr()) != 0 && ffi::PyBytes_Size(item.as_ptr()) > 0;
        if list.is_empty() || !list.iter().all(usable) {
            return None;
        }
        list.sort_by_key(|item| bytes_slice(item.as_ptr()).len());
        Some(list)
    }
}

/// `__anext__`.
unsafe extern "C" fn next(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    reading(object, no_arguments(), "__anext__", |_| Ok(Some(Kind::Next)))
}

fn no_arguments() -> Args {
    // SAFETY: no values at all.
    unsafe { Args::new(std::ptr::NonNull::dangling().as_ptr(), 0, null_mut()) }
}

unsafe extern "C" fn feed_data(object: *mut ffi::PyObject, data: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method sits on the native reader; a borrowed argument.
        let fed = unsafe {
            match plain_reader(object).filter(|reader| reader.is_open()) {
                Some(reader) if ffi::PyBytes_CheckExact(data) != 0 => push(reader, bytes_slice(data)),
                Some(reader) if ffi::PyByteArray_Check(data) != 0 || ffi::PyMemoryView_Check(data) != 0 => {
                    Buffer::readable(data).and_then(|view| push(reader, view.as_slice()))
                }
                _ => pass_on(object, "feed_data", Args::new(&data, 1, null_mut())).map(drop),
            }
        };
        fed.map_or(null_mut(), |()| Ref::none().into_ptr())
    })
}

fn push(reader: &Reader, data: &[u8]) -> Result<(), Raised> {
    if data.is_empty() { Ok(()) } else { reader.push(data) }
}

unsafe extern "C" fn at_eof(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method sits on the native reader.
        let reader = unsafe { Reader::of(object) };
        if !reader.odd_buffer.is_empty() {
            return pass_on(object, "at_eof", no_arguments()).map_or(null_mut(), Ref::into_ptr);
        }
        crate::transport::stream::methods::truth(reader.eof.get() && reader.store().len() == 0)
    })
}

unsafe extern "C" fn exception(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the method sits on the native reader.
    unsafe { Reader::of(object) }.exception.get_or_none()
}

/// asyncio's `repr`, which does not touch the data.
unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: a live reader; repr holds the GIL.
        let (reader, py) = unsafe { (Reader::of(object), Python::assume_attached()) };
        let text = || -> PyResult<String> {
            let mut text = String::from("<StreamReader");
            let size = match reader.odd_buffer.get() {
                Some(shared) => shared.bind(py).len()?,
                None => reader.store().len(),
            };
            if size > 0 {
                text.push_str(&format!(" {size} bytes"));
            }
            if reader.eof.get() {
                text.push_str(" eof");
            }
            let limit = reader.limit.get().unwrap_or_else(Ref::none);
            if limit.bind(py).ne(Fallible(LIMIT))? {
                text.push_str(&format!(" limit={}", limit.bind(py).str()?));
            }
            let slots = [
                ("waiter", &reader.waiter),
                ("exception", &reader.exception),
                ("transport", &reader.transport),
            ];
            for (name, slot) in slots {
                if let Some(value) = slot.get() {
                    text.push_str(&format!(" {name}={}", value.bind(py).repr()?));
                }
            }
            if reader.paused.get() {
                text.push_str(" paused");
            }
            Ok(text + ">")
        };
        match text() {
            Ok(words) => string(&words).map_or(null_mut(), Ref::into_ptr),
            Err(error) => {
                error.restore(py);
                null_mut()
            }
        }
    })
}

/// `__init__(limit=65536, loop=None)`.
unsafe extern "C" fn init(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> c_int {
    guard(|| {
        let (mut limit, mut event_loop) = (null_mut::<ffi::PyObject>(), null_mut::<ffi::PyObject>());
        let mut names = [c"limit".as_ptr().cast_mut(), c"loop".as_ptr().cast_mut(), null_mut::<c_char>()];
        // SAFETY: the format asks for two optional objects, which are borrowed; the names end with null.
        let parsed = unsafe {
            ffi::PyArg_ParseTupleAndKeywords(
                arguments,
                keywords,
                c"|OO:StreamReader".as_ptr(),
                names.as_mut_ptr().cast(),
                &raw mut limit,
                &raw mut event_loop,
            )
        };
        if parsed == 0 {
            return -1;
        }
        // SAFETY: the slot sits on the native reader; borrowed arguments.
        let (reader, limit, event_loop) =
            unsafe { (Reader::of(object), Ref::from_nullable(limit), Ref::from_nullable(event_loop)) };
        match fill(reader, limit, event_loop) {
            Ok(()) => 0,
            Err(Raised) => -1,
        }
    })
}

fn fill(reader: &Reader, limit: Option<Ref>, event_loop: Option<Ref>) -> Result<(), Raised> {
    // SAFETY: slots are filled with the GIL held.
    let py = unsafe { Python::assume_attached() };
    let filled = (|| {
        let limit = match limit {
            Some(limit) => limit,
            None => Ref::from(Fallible(LIMIT).into_pyobject(py)?.into_any()),
        };
        if limit.bind(py).le(0)? {
            return Err(error::exception::<PyValueError>("Limit cannot be <= 0"));
        }
        let given = event_loop.filter(|given| !given.bind(py).is_none());
        let event_loop = match given {
            Some(given) => given,
            None => Ref::from(support(py, "default_loop")?.call0()?),
        };
        let debug = event_loop.bind(py).call_method0(Fallible("get_debug"))?.is_truthy()?;
        let stack = if debug { Some(Ref::from(support(py, "creation_stack")?.call0()?)) } else { None };
        set_limit(reader, limit);
        reader.event_loop.set(Some(event_loop));
        reader.source_traceback.set(stack);
        Ok(())
    })();
    filled.map_err(|error: PyErr| crate::capi::error::restore(py, error))
}

/// A limit that is no ordinary int is asyncio's business, and so are all reads.
fn set_limit(reader: &Reader, limit: Ref) {
    let bytes = number(limit.as_ptr());
    reader.odd_limit.set(bytes.is_none());
    reader.bytes.set(bytes.map_or(0, |bytes| bytes.max(0) as usize));
    reader.limit.set(Some(limit));
}

// -- attributes ----------------------------------------------------------------------------------------

macro_rules! flag_attribute {
    ($get:ident, $set:ident, $field:ident) => {
        unsafe extern "C" fn $get(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
            // SAFETY: the attribute sits on the native reader.
            crate::transport::stream::methods::truth(unsafe { Reader::of(object) }.$field.get())
        }

        unsafe extern "C" fn $set(
            object: *mut ffi::PyObject,
            value: *mut ffi::PyObject,
            _: *mut c_void,
        ) -> c_int {
            guard(|| {
                // SAFETY: as above; a borrowed value, or null to delete it.
                match unsafe { given_truth(value) } {
                    Err(Raised) => -1,
                    Ok(truth) => {
                        // SAFETY: as above.
                        unsafe { Reader::of(object) }.$field.set(truth);
                        0
                    }
                }
            })
        }
    };
}

slot_attribute!(Reader: get_loop, set_loop, event_loop);
slot_attribute!(Reader: get_transport, set_transport, transport);
slot_attribute!(Reader: get_exception, set_exception, exception);
slot_attribute!(Reader: get_waiter, set_waiter, waiter);
slot_attribute!(Reader: get_source_traceback, set_source_traceback, source_traceback);
flag_attribute!(get_eof, set_eof, eof);
flag_attribute!(get_paused, set_paused, paused);

unsafe extern "C" fn get_limit(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: the attribute sits on the native reader.
    unsafe { Reader::of(object) }.limit.get_or_none()
}

unsafe extern "C" fn put_limit(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: as above; a borrowed value, or null to delete it.
        unsafe { set_limit(Reader::of(object), Ref::from_nullable(value).unwrap_or_else(Ref::none)) };
        0
    })
}

unsafe extern "C" fn get_buffer(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the attribute sits on the native reader.
        let reader = unsafe { Reader::of(object) };
        match reader.odd_buffer.get() {
            Some(odd) => odd.into_ptr(),
            None => reader.store().share().map_or(null_mut(), Ref::into_ptr),
        }
    })
}

unsafe extern "C" fn set_buffer(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: as above; a borrowed value, or null to delete it.
        let (reader, value) =
            unsafe { (Reader::of(object), Ref::from_nullable(value).unwrap_or_else(Ref::none)) };
        // SAFETY: a live object.
        let (store, odd) = if unsafe { ffi::PyByteArray_CheckExact(value.as_ptr()) } != 0 {
            (Store::of(value), None)
        } else {
            (Store::empty(), Some(value))
        };
        drop(std::mem::replace(reader.store(), store));
        reader.odd_buffer.set(odd);
        0
    })
}

/// The methods of the native class, and once more of the one that Python makes of it.
pub(super) const METHODS: &[Method] = &[
    Method::Fast(c"read", read, c"read(n=-1)\n\nRead up to n bytes, or all until the end if n is negative."),
    Method::Fast(
        c"readexactly",
        readexactly,
        c"readexactly(n)\n\nRead n bytes; IncompleteReadError if the stream ends before.",
    ),
    Method::NoArgs(c"readline", readline, c"readline()\n\nRead up to and with the next newline."),
    Method::Fast(
        c"readuntil",
        readuntil,
        c"readuntil(separator=b'\\n')\n\nRead up to and with the separator.",
    ),
    Method::OneArg(c"feed_data", feed_data, c"Add data to the stream."),
    Method::NoArgs(c"at_eof", at_eof, c"at_eof()\n\nTrue if the stream has ended and everything was read."),
    Method::NoArgs(c"exception", exception, c"exception()\n\nWhat set_exception() was called with, or None."),
];

/// Makes the native class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let attribute = |name, get, set| Attribute { name, get, set: Some(set) };
    let attributes = [
        attribute(c"_loop", get_loop as ffi::getter, set_loop as ffi::setter),
        attribute(c"_transport", get_transport, set_transport),
        attribute(c"_exception", get_exception, set_exception),
        attribute(c"_waiter", get_waiter, set_waiter),
        attribute(c"_source_traceback", get_source_traceback, set_source_traceback),
        attribute(c"_eof", get_eof, set_eof),
        attribute(c"_paused", get_paused, set_paused),
        attribute(c"_limit", get_limit, put_limit),
        attribute(c"_buffer", get_buffer, set_buffer),
        attribute(c"__dict__", ffi::PyObject_GenericGetDict, ffi::PyObject_GenericSetDict),
    ];
    let kind = TypeSpec {
        name: c"wakeloop._core.StreamReader",
        size: size_of::<Reader>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_BASETYPE,
        methods: METHODS,
        attributes: &attributes,
        weaklist_offset: Some(offset_of!(Reader, weaklist)),
        dict_offset: Some(offset_of!(Reader, dict)),
        objects: &[],
        slots: &[
            (ffi::Py_tp_init, init as *mut c_void),
            (ffi::Py_tp_new, ffi::PyType_GenericNew as *mut c_void),
            (ffi::Py_tp_dealloc, dealloc::<Reader> as *mut c_void),
            (ffi::Py_tp_traverse, traverse::<Reader> as *mut c_void),
            (ffi::Py_tp_clear, clear::<Reader> as *mut c_void),
            (ffi::Py_tp_repr, repr as *mut c_void),
            (ffi::Py_am_anext, next as *mut c_void),
        ],
        bases: None,
    }
    .build(py)?;
    // SAFETY: the type was just made and lives for ever.
    Ok(unsafe { Bound::from_borrowed_ptr(py, kind.cast()) })
}
