//! The native half of a StreamWriter: writing and draining. The rest is asyncio's, over the same attributes.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::call::{Call, Kind};
use super::reader::has_no_items;
use super::{CLASSES, CONNECTION_LOST, PAUSED, inherited, plain_reader};
use crate::capi::call::{guard, method};
use crate::capi::collected::{Collected, Instance, clear, dealloc, traverse};
use crate::capi::error::raise_message;
use crate::capi::imports::imports;
use crate::capi::types::{Attribute, Method, TypeSpec};
use crate::capi::{Args, Raised, Ref, Slot};
use crate::transport::stream::send;
use crate::transport::stream::transport::{Stream, stream_of};

/// The fields. All zero is a writer that was never initialised.
#[repr(C)]
pub(super) struct Writer {
    base: ffi::PyObject,
    transport: Slot,
    protocol: Slot,
    reader: Slot,
    event_loop: Slot,
    complete: Slot,
    weaklist: Cell<*mut ffi::PyObject>,
    dict: Slot,
}

impl Writer {
    /// # Safety
    /// `object` is a native writer, or of a class made of it, and outlives the result.
    #[inline(always)]
    unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a Writer {
        // SAFETY: the caller's word; all fields are cells.
        unsafe { &*object.cast() }
    }

    /// The transport, if it is our stream transport with its own methods.
    #[inline(always)]
    fn plain_transport(&self) -> Option<(Ref, &Stream)> {
        let classes = CLASSES.get()?;
        let object = self.transport.as_ptr();
        if object.is_null() || !classes.transport.is_class_of(object) || !classes.transport.is_unpatched() {
            return None;
        }
        // SAFETY: just tested; the slot holds it, and so does the reference that goes with the fields.
        let (held, stream) = unsafe { (Ref::from_borrowed(object), stream_of(object)) };
        stream.has_no_own_attributes().then_some((held, stream))
    }
}

/// The fields of a plain writer of ours.
#[inline(always)]
fn plain_writer<'a>(object: *mut ffi::PyObject) -> Option<&'a Writer> {
    let classes = CLASSES.get()?;
    if !classes.writer.is_class_of(object) || !classes.writer.is_unpatched() {
        return None;
    }
    // SAFETY: of the class that Python has made of the native one.
    let writer = unsafe { Writer::of(object) };
    has_no_items(&writer.dict).then_some(writer)
}

/// Would asyncio's `drain` come to its end without waiting, and without an error?
#[inline(always)]
pub(super) fn is_drained(object: *mut ffi::PyObject) -> Result<bool, Raised> {
    let (Some(writer), Some(classes)) = (plain_writer(object), CLASSES.get()) else { return Ok(false) };
    if !writer.reader.is_empty()
        && plain_reader(writer.reader.as_ptr()).is_none_or(|reader| !reader.exception.is_empty())
    {
        return Ok(false);
    }
    let closing = match writer.plain_transport() {
        Some((_held, stream)) => stream.closing.get(),
        None => asked_closing(writer)?,
    };
    let Some(protocol) = writer.protocol.get() else { return Ok(false) };
    if closing || !classes.protocol.is_unpatched_on(protocol.as_ptr())? {
        return Ok(false);
    }
    let is_false = |index| -> Result<bool, Raised> {
        // SAFETY: comparing with the address of a static.
        Ok(classes.protocol.get(protocol.as_ptr(), index)?.as_ptr() == unsafe { ffi::Py_False() })
    };
    Ok(is_false(PAUSED)? && is_false(CONNECTION_LOST)?)
}

/// `transport.is_closing()` of any transport; what is not `False` counts as true.
fn asked_closing(writer: &Writer) -> Result<bool, Raised> {
    let Some(transport) = writer.transport.get() else { return Ok(true) };
    let closing = method(&transport, imports().is_closing.as_ptr(), &[])?;
    // SAFETY: comparing with the address of a static.
    Ok(closing.as_ptr() != unsafe { ffi::Py_False() })
}

/// The frame of a method with one argument that is passed to the transport.
#[inline(always)]
fn passed(
    object: *mut ffi::PyObject,
    values: (*const *mut ffi::PyObject, ffi::Py_ssize_t, *mut ffi::PyObject),
    name: &'static str,
    native: impl FnOnce(&Ref, &Stream, *mut ffi::PyObject) -> Result<(), Raised>,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the arguments of this call.
        let arguments = unsafe { Args::new(values.0, values.1, values.2) };
        let done = match plain_writer(object).and_then(Writer::plain_transport) {
            Some((held, stream)) => arguments.one(name, "data").and_then(|data| native(&held, stream, data)),
            None => pass_on(object, name, arguments).map(drop),
        };
        done.map_or(null_mut(), |()| Ref::none().into_ptr())
    })
}

/// Calls asyncio's method of the name instead.
#[cold]
fn pass_on(object: *mut ffi::PyObject, name: &str, arguments: Args) -> Result<Ref, Raised> {
    match CLASSES.get() {
        Some(classes) => inherited(&classes.asyncio_writer, name, object, arguments),
        None => {
            // SAFETY: reading a static of the interpreter.
            raise_message(unsafe { ffi::PyExc_RuntimeError }, "wakeloop is not imported completely");
            Err(Raised)
        }
    }
}

unsafe extern "C" fn write(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    passed(object, (values, count, names), "write", send::write)
}

unsafe extern "C" fn writelines(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    passed(object, (values, count, names), "writelines", |held, stream, list| {
        // SAFETY: a borrowed argument.
        let list = unsafe { Ref::from_borrowed(list) };
        send::writelines(held, stream, &list)
    })
}

unsafe extern "C" fn drain(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        let made = match plain_writer(object) {
            Some(_) => Call::create(object, Kind::Drain),
            // SAFETY: no values at all.
            None => pass_on(object, "drain", unsafe { Args::new([].as_ptr(), 0, null_mut()) }),
        };
        made.map_or(null_mut(), Ref::into_ptr)
    })
}

/// `__init__(transport, protocol, reader, loop)`.
unsafe extern "C" fn init(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> c_int {
    guard(|| {
        let mut given = [null_mut::<ffi::PyObject>(); 4];
        let [transport, protocol, reader, event_loop] = &mut given;
        let mut names = [
            c"transport".as_ptr().cast_mut(),
            c"protocol".as_ptr().cast_mut(),
            c"reader".as_ptr().cast_mut(),
            c"loop".as_ptr().cast_mut(),
            null_mut::<c_char>(),
        ];
        // SAFETY: the format asks for four objects, which are borrowed; the names end with null.
        let parsed = unsafe {
            ffi::PyArg_ParseTupleAndKeywords(
                arguments,
                keywords,
                c"OOOO:StreamWriter".as_ptr(),
                names.as_mut_ptr().cast(),
                &raw mut *transport,
                &raw mut *protocol,
                &raw mut *reader,
                &raw mut *event_loop,
            )
        };
        if parsed == 0 {
            return -1;
        }
        // SAFETY: the slot sits on the native writer; borrowed arguments.
        unsafe {
            let writer = Writer::of(object);
            let slots = [&writer.transport, &writer.protocol, &writer.reader, &writer.event_loop];
            for (slot, value) in slots.into_iter().zip(given) {
                slot.set(Some(Ref::from_borrowed(value)).filter(|value| value.as_ptr() != ffi::Py_None()));
            }
        }
        0
    })
}

// -- attributes ----------------------------------------------------------------------------------------

slot_attribute!(Writer: get_transport, set_transport, transport);
slot_attribute!(Writer: get_protocol, set_protocol, protocol);
slot_attribute!(Writer: get_reader, set_reader, reader);
slot_attribute!(Writer: get_loop, set_loop, event_loop);

/// asyncio makes a completed future for each writer and never uses it; here it is made for who asks.
unsafe extern "C" fn get_complete(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the attribute sits on the native writer.
        let writer = unsafe { Writer::of(object) };
        if writer.complete.is_empty() {
            let event_loop = writer.event_loop.get().unwrap_or_else(Ref::none);
            let made = method(&event_loop, imports().create_future.as_ptr(), &[]).and_then(|future| {
                // SAFETY: the address of `None`.
                method(&future, imports().set_result.as_ptr(), &[unsafe { ffi::Py_None() }])?;
                Ok(future)
            });
            match made {
                Ok(future) => writer.complete.set(Some(future)),
                Err(Raised) => return null_mut(),
            }
        }
        writer.complete.get_or_none()
    })
}

// -- the type ------------------------------------------------------------------------------------------

// SAFETY: `repr(C)`, `base` comes first, and what changes is in cells.
unsafe impl Collected for Writer {
    fn held(&self) -> impl Iterator<Item = &Slot> {
        [&self.transport, &self.protocol, &self.reader, &self.event_loop, &self.complete, &self.dict]
            .into_iter()
    }
}

// SAFETY: the field whose offset the type is made with.
unsafe impl Instance for Writer {
    fn weaklist(&self) -> &Cell<*mut ffi::PyObject> {
        &self.weaklist
    }
}

/// The methods of the native class, and once more of the one that Python makes of it.
pub(super) const METHODS: &[Method] = &[
    Method::Fast(c"write", write, c"write(data)\n\nWrite data; nothing blocks."),
    Method::Fast(c"writelines", writelines, c"writelines(data)\n\nWrite several pieces of data, in order."),
    Method::NoArgs(c"drain", drain, c"drain()\n\nWait until more may be written."),
];

/// Makes the native class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let attribute = |name, get, set| Attribute { name, get, set: Some(set) };
    let attributes = [
        attribute(c"_transport", get_transport as ffi::getter, set_transport as ffi::setter),
        attribute(c"_protocol", get_protocol, set_protocol),
        attribute(c"_reader", get_reader, set_reader),
        attribute(c"_loop", get_loop, set_loop),
        Attribute { name: c"_complete_fut", get: get_complete, set: None },
        attribute(c"__dict__", ffi::PyObject_GenericGetDict, ffi::PyObject_GenericSetDict),
    ];
    let kind = TypeSpec {
        name: c"wakeloop._core.StreamWriter",
        size: size_of::<Writer>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_BASETYPE,
        methods: METHODS,
        attributes: &attributes,
        weaklist_offset: Some(offset_of!(Writer, weaklist)),
        dict_offset: Some(offset_of!(Writer, dict)),
        objects: &[],
        slots: &[
            (ffi::Py_tp_init, init as *mut c_void),
            (ffi::Py_tp_new, ffi::PyType_GenericNew as *mut c_void),
            (ffi::Py_tp_dealloc, dealloc::<Writer> as *mut c_void),
            (ffi::Py_tp_traverse, traverse::<Writer> as *mut c_void),
            (ffi::Py_tp_clear, clear::<Writer> as *mut c_void),
        ],
        bases: None,
    }
    .build(py)?;
    // SAFETY: the type was just made and lives for ever.
    Ok(unsafe { Bound::from_borrowed_ptr(py, kind.cast()) })
}
