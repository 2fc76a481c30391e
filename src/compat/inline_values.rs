//! Reads and writes the attributes of an instance where CPython stores them (inline values).
//!
//! Since 3.13 the values of an instance of a Python class follow the object in memory, in an order that the class's
//! shared keys define. Reading one is a load, while the public API takes more than a hundred instructions. The layout
//! is private to CPython. So it is used only on the versions that this file was written for, and only for a class on
//! which the self-test of [`InlineValues::init`] has found each attribute. Otherwise the caller uses the public API.
//!
//! ```text
//! object - 24   the instance's dict; null until a program has asked for it
//! object        reference count, class
//! object + 16   capacity, size (both u8): the number of entries, and how many of them are set
//! object + 18   embedded, valid (both u8): 1 while the entries are the instance's attributes
//! object + 24   the entries
//! keys + 24     the number of the class's shared keys
//! ```

use pyo3::ffi;

use crate::capi::{Borrowed, Ref};

/// Where the attributes of one class are stored.
#[derive(Debug)]
pub(super) struct InlineValues {
    /// The index of each attribute's value.
    indices: Vec<usize>,
    /// The self-test has found as many shared keys of the class as there are attributes.
    keys_counted: bool,
}

const HEADER: usize = size_of::<ffi::PyObject>();
const VALUES: usize = HEADER + 8;
const DICT: isize = -3 * size_of::<usize>() as isize;
const KEY_COUNT: usize = 24;

impl InlineValues {
    /// The self-test: creates an instance, sets each attribute, and finds out where CPython has stored it.
    #[cfg(all(Py_3_13, not(Py_3_16), not(Py_GIL_DISABLED), target_pointer_width = "64"))]
    pub(super) fn init(kind: &Ref, names: &[Ref]) -> Option<InlineValues> {
        const FLAGS: std::ffi::c_ulong = 1 << 2 | 1 << 4; // inline values, managed dict
        // SAFETY: a type object. `object.__new__` makes the instance: the class adds nothing to the size of `object`.
        // Its memory is read only if the flags of the class say that its values are inline. A `Ref` owns every object.
        unsafe {
            let raw = kind.as_ptr().cast::<ffi::PyTypeObject>();
            if (*raw).tp_flags & FLAGS != FLAGS || (*raw).tp_basicsize as usize != HEADER {
                return None;
            }
            let nothing = Ref::from_owned(ffi::PyTuple_New(0))?;
            let make = ffi::PyBaseObject_Type.tp_new?;
            let sample = Ref::from_owned(make(raw, nothing.as_ptr(), std::ptr::null_mut()))?;
            let object = sample.as_ptr();
            let mut indices = Vec::with_capacity(names.len());
            for (count, name) in names.iter().enumerate() {
                let marker = Ref::from_owned(ffi::PyList_New(0))?;
                if header(object) != Some(count)
                    || ffi::PyObject_SetAttr(object, name.as_ptr(), marker.as_ptr()) < 0
                {
                    return None;
                }
                let capacity = *object.cast::<u8>().add(HEADER);
                let mut found =
                    (0..usize::from(capacity)).filter(|&index| *value(object, index) == marker.as_ptr());
                indices.push(found.next()?);
            }
            if header(object) != Some(names.len()) || !(*dict(object)).is_null() {
                return None;
            }
            // Reading `__dict__` leaves the values inline. Assigning another dict does not.
            let own = Ref::from_owned(ffi::PyObject_GetAttrString(object, c"__dict__".as_ptr()))?;
            let kept = *dict(object) == own.as_ptr() && header(object) == Some(names.len());
            let other = Ref::from_owned(ffi::PyDict_New())?;
            let replaced = ffi::PyObject_SetAttrString(object, c"__dict__".as_ptr(), other.as_ptr()) == 0;
            let keys_counted = key_count(raw) == names.len();
            (kept && replaced && header(object).is_none()).then_some(InlineValues { indices, keys_counted })
        }
    }

    #[cfg(not(all(Py_3_13, not(Py_3_16), not(Py_GIL_DISABLED), target_pointer_width = "64")))]
    pub(super) fn init(_kind: &Ref, _names: &[Ref]) -> Option<InlineValues> {
        None
    }

    /// Are the instance's attributes inline, and are all of them known to the self-test?
    ///
    /// # Safety
    /// `object` is an instance of exactly this class.
    #[inline(always)]
    pub(super) unsafe fn are_all(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: the caller's promise; see the function's head.
        unsafe {
            let Some(size) = header(object) else { return false };
            // The class's keys only grow, so these are the keys of the self-test.
            if self.keys_counted && key_count(ffi::Py_TYPE(object)) == self.indices.len() {
                return true;
            }
            let capacity = usize::from(*object.cast::<u8>().add(HEADER));
            let known =
                self.indices.iter().filter(|&&index| index < capacity && !(*value(object, index)).is_null());
            known.count() == size
        }
    }

    /// Attribute `index`, borrowed from the object; `None` if it is not set, or not inline.
    ///
    /// # Safety
    /// `object` is an instance of exactly this class. The result is valid only until other code runs, which may replace
    /// the attribute.
    #[inline(always)]
    pub(super) unsafe fn get(&self, object: &Ref, index: usize) -> Option<Borrowed<'_>> {
        // SAFETY: the caller's promise; see the function's head.
        unsafe { self.entry(object.as_ptr(), index).and_then(|entry| Borrowed::from_nullable(*entry)) }
    }

    /// Replaces the value of an attribute. Returns the new value as the error if the attribute is not set, is not
    /// inline, or if the instance has a dict.
    ///
    /// # Safety
    /// `object` is an instance of exactly this class.
    #[inline(always)]
    pub(super) unsafe fn set(&self, object: *mut ffi::PyObject, index: usize, new: Ref) -> Result<(), Ref> {
        // SAFETY: the caller's promise. The old value is dropped last, because that may run Python code. An instance
        // with a dict is left to CPython, because the dict may have a watcher.
        unsafe {
            match self.entry(object, index) {
                Some(entry) if !(*entry).is_null() && (*dict(object)).is_null() => {
                    drop(Ref::from_owned(entry.replace(new.into_ptr())));
                    Ok(())
                }
                _ => Err(new),
            }
        }
    }

    #[inline(always)]
    unsafe fn entry(&self, object: *mut ffi::PyObject, index: usize) -> Option<*mut *mut ffi::PyObject> {
        let index = self.indices[index];
        // SAFETY: the callers pass an instance of the class. The index is compared with the object's capacity.
        unsafe {
            let capacity = usize::from(*object.cast::<u8>().add(HEADER));
            (header(object).is_some() && index < capacity).then(|| value(object, index))
        }
    }
}

/// How many attributes are set on the object, if they are inline.
#[inline(always)]
unsafe fn header(object: *mut ffi::PyObject) -> Option<usize> {
    // SAFETY: the callers pass an object of a class with inline values.
    unsafe {
        let header = object.cast::<u8>().add(HEADER);
        (*header.add(2) == 1 && *header.add(3) == 1).then(|| usize::from(*header.add(1)))
    }
}

/// How many keys the instances of a class share.
#[inline(always)]
unsafe fn key_count(class: *mut ffi::PyTypeObject) -> usize {
    // SAFETY: the callers pass a class whose instances have inline values, so it has shared keys.
    unsafe { *(*class.cast::<ffi::PyHeapTypeObject>()).ht_cached_keys.cast::<u8>().add(KEY_COUNT).cast() }
}

#[inline(always)]
unsafe fn value(object: *mut ffi::PyObject, index: usize) -> *mut *mut ffi::PyObject {
    // SAFETY: the callers pass an object of a class with inline values, and an index below its capacity.
    unsafe { object.cast::<u8>().add(VALUES).cast::<*mut ffi::PyObject>().add(index) }
}

#[inline(always)]
unsafe fn dict(object: *mut ffi::PyObject) -> *mut *mut ffi::PyObject {
    // SAFETY: the callers pass an object with inline values. Its class has a managed dict, whose pointer precedes it.
    unsafe { object.cast::<u8>().offset(DICT).cast() }
}
