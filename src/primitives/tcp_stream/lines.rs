//! `async for`: lines or frames of a stream.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::call::{Action, TcpStreamCall};
use crate::capi::call::guard;
use crate::capi::types::TypeSpec;
use crate::capi::{Ref, Slot};
use crate::runtime::net::Want;

/// The iterator. It keeps the stream alive and has no state of its own.
#[repr(C)]
struct Iterator {
    base: ffi::PyObject,
    stream: Slot,
    /// The longest frame, if it is frames.
    frames: Option<usize>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

/// An iterator over `stream`, a TcpStream: over frames of at most so many bytes, or over lines.
pub(super) fn make<'py>(stream: &Bound<'py, PyAny>, frames: Option<usize>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: fresh memory of the type's size; every field is written before the object is seen. Relaxed: the type
    // was stored under the GIL, at import.
    unsafe {
        let object = ffi::PyObject_New::<ffi::PyObject>(TYPE.load(Ordering::Relaxed));
        let owned = Bound::from_owned_ptr_or_err(stream.py(), object)?;
        let iterator = object.cast::<Iterator>();
        (&raw mut (*iterator).stream).write(Slot::new(Some(stream.clone().into())));
        (&raw mut (*iterator).frames).write(frames);
        Ok(owned)
    }
}

unsafe extern "C" fn anext(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the slot sits on Iterator, whose stream is a TcpStream.
        unsafe {
            let iterator = &*object.cast::<Iterator>();
            let want = iterator.frames.map_or(Want::Line, Want::Frame);
            let name = "TcpStream.__anext__";
            TcpStreamCall::create(iterator.stream.as_ptr(), name, Action::Read { want, next: true })
                .map_or(null_mut(), Ref::into_ptr)
        }
    })
}

unsafe extern "C" fn itself(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a live object.
    unsafe { Ref::from_borrowed(object) }.into_ptr()
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for an Iterator without references.
    unsafe {
        (*object.cast::<Iterator>()).stream.clear();
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_Free(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    let kind = TypeSpec {
        name: c"wakeloop._core.TcpStreamIterator",
        size: size_of::<Iterator>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION,
        methods: &[],
        attributes: &[],
        weaklist_offset: None,
        dict_offset: None,
        objects: &[],
        slots: &[
            (ffi::Py_tp_dealloc, dealloc as *mut c_void),
            (ffi::Py_am_aiter, itself as *mut c_void),
            (ffi::Py_am_anext, anext as *mut c_void),
        ],
        bases: None,
    }
    .build(py)?;
    // Relaxed: published under the GIL.
    TYPE.store(kind, Ordering::Relaxed);
    Ok(())
}
