//! How the type of an endpoint is made, and what CPython calls on its instances: the collector, `repr`, the
//! end of an object's life.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use pyo3::ffi;
use pyo3::prelude::*;

use super::endpoint::{Endpoint, OFFSET, Variant, fields, release};
use crate::capi::call::guard;
use crate::capi::error::undisturbed;
use crate::capi::fallible::{py_tuple, string};
use crate::capi::types::{Attribute, Method, TypeSpec};
use crate::capi::{Fallible, Ref, Slot};
use crate::event_loop::source::descriptor;

unsafe extern "C" fn dealloc<T: Variant>(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for an endpoint without references.
    unsafe {
        if ffi::PyObject_CallFinalizerFromDealloc(object) < 0 {
            return;
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        let variant = std::ptr::from_ref(fields::<T>(object)).cast_mut();
        if !(*variant).endpoint().weaklist.get().is_null() {
            ffi::PyObject_ClearWeakRefs(object);
        }
        std::ptr::drop_in_place(variant);
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}

/// asyncio's `__del__`: an endpoint that nobody closed is closed here, with a ResourceWarning.
unsafe extern "C" fn finalize<T: Variant>(object: *mut ffi::PyObject) {
    let _ = guard(|| {
        // SAFETY: an endpoint that is about to die.
        let variant = unsafe { fields::<T>(object) };
        if variant.endpoint().owner.is_empty() {
            return 0;
        }
        // SAFETY: as above.
        undisturbed(|| unsafe {
            let held = Ref::from_borrowed(object);
            let told = variant.endpoint().core().support("unclosed_transport", &[object]);
            if told.is_err() {
                ffi::PyErr_WriteUnraisable(object);
            }
            if release(&held, variant).is_err() {
                ffi::PyErr_WriteUnraisable(object);
            }
        });
        0
    });
}

unsafe extern "C" fn traverse<T: Variant>(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the collector's call, with its own visitor, for one of our endpoints; a heap type is visited
    // by its instances.
    unsafe {
        let mut result = visit(ffi::Py_TYPE(object).cast(), argument);
        let variant = fields::<T>(object);
        let endpoint = variant.endpoint();
        let mut each = |slot: &Slot| {
            if result == 0 {
                result = slot.visit(visit, argument);
            }
        };
        each(&endpoint.event_loop);
        each(&endpoint.owner);
        each_clearable(variant, &mut each);
        result
    }
}

unsafe extern "C" fn clear<T: Variant>(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector's call for one of our endpoints. The loop stays, because methods need it and
    // its own clear breaks the cycle; the owner stays, because the descriptor is still ours to close.
    let variant = unsafe { fields::<T>(object) };
    each_clearable(variant, &mut |slot| slot.clear());
    0
}

fn each_clearable<T: Variant>(variant: &T, each: &mut dyn FnMut(&Slot)) {
    let endpoint = variant.endpoint();
    for slot in [
        &endpoint.protocol,
        &endpoint.context,
        &endpoint.extra,
        &endpoint.waiter,
        &endpoint.lost_with,
        &endpoint.dict,
    ] {
        each(slot);
    }
    variant.each_slot(each);
}

unsafe extern "C" fn repr<T: Variant>(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: a live endpoint.
        let variant = unsafe { fields::<T>(object) };
        let endpoint = variant.endpoint();
        let name = T::NAME.to_string_lossy();
        let mut text = format!("<wakeloop.{}", name.rsplit('.').next().unwrap_or(&name));
        if endpoint.owner.is_empty() {
            text.push_str(&format!(" closed fd={}", descriptor(endpoint.token.get())));
        } else if endpoint.closing.get() {
            text.push_str(" closing");
        }
        if endpoint.fd.get() >= 0 {
            text.push_str(&format!(" fd={}", endpoint.fd.get()));
            variant.describe(&mut text);
        }
        text.push('>');
        string(&text).map_or(null_mut(), Ref::into_ptr)
    })
}

/// Makes a variant's type, with these methods beside those that every endpoint has. Called once, by the
/// module's initialisation.
pub(crate) fn make_type<T: Variant>(py: Python<'_>, methods: Vec<Method>) -> PyResult<Bound<'_, PyAny>> {
    const { assert!(align_of::<T>() <= 16) };
    let module = py.import(Fallible("asyncio.transports"))?;
    let largest = module.getattr(Fallible("_FlowControlMixin"))?.cast_into::<pyo3::types::PyType>()?;
    // SAFETY: a live type object.
    let size = unsafe { (*largest.as_type_ptr()).tp_basicsize } as usize;
    // Relaxed: the same value each time, stored under the GIL.
    OFFSET.store(size.next_multiple_of(16), Ordering::Relaxed);
    let bases = T::BASES.iter().map(|base| module.getattr(Fallible(*base))).collect::<PyResult<Vec<_>>>()?;
    let mut all_methods = super::methods::common::<T>();
    all_methods.extend(methods);
    let mut all_attributes = super::methods::attributes::<T>();
    all_attributes.push(Attribute {
        name: c"__dict__",
        get: ffi::PyObject_GenericGetDict,
        set: Some(ffi::PyObject_GenericSetDict),
    });
    let start = size.next_multiple_of(16);
    let spec = TypeSpec {
        name: T::NAME,
        size: start + size_of::<T>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION,
        methods: &all_methods,
        attributes: &all_attributes,
        weaklist_offset: Some(start + T::ENDPOINT + offset_of!(Endpoint, weaklist)),
        dict_offset: Some(start + T::ENDPOINT + offset_of!(Endpoint, dict)),
        objects: &[],
        slots: &[
            (ffi::Py_tp_dealloc, dealloc::<T> as *mut c_void),
            (ffi::Py_tp_finalize, finalize::<T> as *mut c_void),
            (ffi::Py_tp_traverse, traverse::<T> as *mut c_void),
            (ffi::Py_tp_clear, clear::<T> as *mut c_void),
            (ffi::Py_tp_repr, repr::<T> as *mut c_void),
        ],
        bases: Some(py_tuple(py, bases)?),
    };
    let kind = spec.build(py)?;
    // Relaxed: published under the GIL.
    T::kind().store(kind, Ordering::Relaxed);
    // SAFETY: the type was just made and lives for ever.
    Ok(unsafe { Bound::from_borrowed_ptr(py, kind.cast()) })
}
