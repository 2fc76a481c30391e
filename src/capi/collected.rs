//! What the collector asks of a native object with a header of its: which references it holds, and to let them go.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use pyo3::ffi;

use super::object::Slot;
use super::types::visit_instance;

/// # Safety
/// The type is `repr(C)` and begins with its `PyObject`, and its state is in cells.
pub(crate) unsafe trait Collected {
    /// The references that it holds.
    fn held(&self) -> impl Iterator<Item = &Slot>;

    /// Lets them go. May be called more than once.
    fn let_go(&self) {
        for slot in self.held() {
            slot.clear();
        }
    }
}

/// A collected object of a class that Python code may derive from.
///
/// # Safety
/// As for [`Collected`]; `weaklist` is where the type says that weak references are.
pub(crate) unsafe trait Instance: Collected {
    fn weaklist(&self) -> &Cell<*mut ffi::PyObject>;
}

/// # Safety
/// `object` is a `T` and outlives the result.
unsafe fn of<'a, T: Collected>(object: *mut ffi::PyObject) -> &'a T {
    // SAFETY: the caller's word and the trait's.
    unsafe { &*object.cast() }
}

/// `tp_traverse`.
pub(crate) unsafe extern "C" fn traverse<T: Collected>(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the collector's call for an object of this type; a heap type is visited by its instances.
    unsafe { visit_instance(object, of::<T>(object).held(), visit, argument) }
}

/// `tp_clear`.
pub(crate) unsafe extern "C" fn clear<T: Collected>(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector's call for an object of this type.
    unsafe { of::<T>(object) }.let_go();
    0
}

/// `tp_dealloc`.
pub(crate) unsafe extern "C" fn dealloc<T: Instance>(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for an object without references, perhaps through a class that Python has made,
    // which has called `__del__`. All fields are valid until they are dropped here.
    unsafe {
        ffi::PyObject_GC_UnTrack(object.cast());
        let instance = of::<T>(object);
        if !instance.weaklist().get().is_null() {
            ffi::PyObject_ClearWeakRefs(object);
        }
        instance.let_go();
        std::ptr::drop_in_place(object.cast::<T>());
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}
