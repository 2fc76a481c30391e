//! What the cyclic collector needs from a native object: to see the references that it holds, and to drop them.

use std::ffi::{c_int, c_void};

use pyo3::ffi;

use super::native::{Native, This, in_section};
use super::object::{Ref, Slot};
use super::section;

/// An object that takes part in garbage collection.
pub(crate) trait Traverse: Native {
    /// Shows the visitor every reference that the object holds, each once. Runs no Python and changes nothing.
    fn traverse(&self, visitor: &mut Visitor);

    /// Drops the references that can be part of a cycle. May be called more than once.
    fn clear(&self);
}

/// The collector's function, which is called for each reference. Once it returns another result than zero, the rest
/// is skipped.
#[derive(Debug)]
pub(crate) struct Visitor {
    visit: ffi::visitproc,
    argument: *mut c_void,
    result: c_int,
}

impl Visitor {
    #[inline(always)]
    unsafe fn object(&mut self, object: *mut ffi::PyObject) {
        if self.result == 0 && !object.is_null() {
            // SAFETY: the collector's own function and argument, on a live object.
            self.result = unsafe { (self.visit)(object, self.argument) };
        }
    }

    /// Shows what a slot holds.
    #[inline(always)]
    pub(crate) fn slot(&mut self, slot: &Slot) {
        // SAFETY: a slot's object lives.
        unsafe { self.object(slot.as_ptr()) }
    }

    /// Shows what several slots hold.
    #[inline(always)]
    pub(crate) fn slots<'a>(&mut self, slots: impl IntoIterator<Item = &'a Slot>) {
        slots.into_iter().for_each(|slot| self.slot(slot));
    }

    /// Shows a reference.
    #[inline(always)]
    pub(crate) fn reference(&mut self, object: &Ref) {
        // SAFETY: a reference's object lives.
        unsafe { self.object(object.as_ptr()) }
    }
}

/// `tp_traverse`. An instance of a heap type holds a reference to its type.
pub(super) unsafe extern "C" fn traverse<T: Traverse>(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    let mut visitor = Visitor { visit, argument, result: 0 };
    // SAFETY: the collector's call for an instance that it tracks. On a free-threaded build it has stopped all other
    // threads, so no section is needed; one that waited for a lock would never end.
    unsafe {
        visitor.object(ffi::Py_TYPE(object).cast());
        let this = This::<T>::outside(object);
        section::alone(T::guard(this), || this.traverse(&mut visitor));
    }
    visitor.result
}

/// `tp_clear`.
pub(super) unsafe extern "C" fn clear<T: Traverse>(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector's call for an instance that it tracks.
    unsafe { in_section(object, |this: This<'_, T>| this.clear()) };
    0
}
