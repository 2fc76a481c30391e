//! The memory of dead objects, for new objects of the same class.

use std::cell::UnsafeCell;

use pyo3::ffi;

use crate::capi::section::REUSES;

unsafe extern "C" {
    /// Gives an object of a class its first reference, and tells tracemalloc. `PyObject_Init` also sets the class.
    fn _Py_NewReference(object: *mut ffi::PyObject);
}

/// Memory of one class, whose instances all have the same size. The allocator gets back what does not fit. Memory that is
/// kept still refers to the class.
#[derive(Debug)]
pub(crate) struct Freelist {
    objects: UnsafeCell<Vec<*mut ffi::PyObject>>,
    most: usize,
}

// SAFETY: touched only with the GIL held, and never across a call that could release it; without a GIL, not at all.
unsafe impl Sync for Freelist {}

impl Freelist {
    /// A list that keeps the memory of at most `most` objects.
    pub(crate) const fn new(most: usize) -> Freelist {
        Freelist { objects: UnsafeCell::new(Vec::new()), most }
    }

    /// An object with one reference, whose fields behind its header are not written yet. The collector does not track
    /// it. `None` if the list is empty.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<*mut ffi::PyObject> {
        if !REUSES {
            return None;
        }
        // SAFETY: the GIL is held, and the memory is of a dead object, which still has its class.
        unsafe {
            let object = (*self.objects.get()).pop()?;
            _Py_NewReference(object);
            Some(object)
        }
    }

    /// Keeps the memory of a dead object. False if there is no room.
    ///
    /// # Safety
    /// `object` is of this list's class and not of a subclass, and it is dead: without references, not tracked, without
    /// weak references, and holding nothing but its class.
    #[inline(always)]
    pub(crate) unsafe fn keep(&self, object: *mut ffi::PyObject) -> bool {
        if !REUSES {
            return false;
        }
        // SAFETY: the GIL is held, and no Python code runs inside.
        let objects = unsafe { &mut *self.objects.get() };
        if objects.len() >= self.most || (objects.len() == objects.capacity() && !self.grow(objects)) {
            return false;
        }
        objects.push(object);
        true
    }

    /// Makes room for all that the list may keep, if there is memory for it: an object may die when there is none.
    #[cold]
    fn grow(&self, objects: &mut Vec<*mut ffi::PyObject>) -> bool {
        objects.try_reserve_exact(self.most - objects.len()).is_ok()
    }
}
