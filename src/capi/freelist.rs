//! Dead objects that are kept for reuse, because making one costs more than what it is for.

use std::cell::UnsafeCell;

use pyo3::ffi;

/// At most `MOST` dead objects of one type; more go back to the allocator. Guarded by the GIL.
#[derive(Debug)]
pub(crate) struct Freelist<const MOST: usize>(UnsafeCell<Vec<*mut ffi::PyObject>>);

// SAFETY: touched only with the GIL held, and never across a call that could release it.
unsafe impl<const MOST: usize> Sync for Freelist<MOST> {}

impl<const MOST: usize> Freelist<MOST> {
    pub(crate) const fn new() -> Freelist<MOST> {
        Freelist(UnsafeCell::new(Vec::new()))
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<*mut ffi::PyObject> {
        // SAFETY: GIL held, no Python code runs inside.
        unsafe { (*self.0.get()).pop() }
    }

    /// Keeps the object, or says that there is no room.
    #[inline(always)]
    pub(crate) fn push(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: GIL held, no Python code runs inside.
        let list = unsafe { &mut *self.0.get() };
        if list.len() >= MOST {
            return false;
        }
        list.push(object);
        true
    }

    /// An object with a collector's header, whose fields behind its own header are not written yet and which the
    /// collector does not track; null with an error. [`Freelist::free_gc`] is its end.
    ///
    /// # Safety
    /// `kind` is the one type of this list, of fixed size and with a collector's header.
    #[inline(always)]
    pub(crate) unsafe fn new_gc(&self, kind: *mut ffi::PyTypeObject) -> *mut ffi::PyObject {
        // SAFETY: a dead object of this type, or fresh memory for one.
        unsafe {
            match self.pop() {
                Some(object) => ffi::PyObject_Init(object, kind),
                None => ffi::PyObject_GC_New::<ffi::PyObject>(kind),
            }
        }
    }

    /// The end of a `tp_dealloc`: keeps the memory or frees it, and gives the reference to the type back.
    ///
    /// # Safety
    /// `object` came from [`Freelist::new_gc`] of this list, has no references, is not tracked and holds nothing.
    #[inline(always)]
    pub(crate) unsafe fn free_gc(&self, object: *mut ffi::PyObject) {
        // SAFETY: the caller's word.
        unsafe {
            let kind = ffi::Py_TYPE(object);
            if !self.push(object) {
                ffi::PyObject_GC_Del(object.cast());
            }
            ffi::Py_DECREF(kind.cast());
        }
    }
}
