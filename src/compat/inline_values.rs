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
//! keys + 9      the binary logarithm of the bytes of the keys' hash table (u8)
//! keys + 24     the number of the class's shared keys
//! keys + 32     the hash table, and behind it the shared keys, each as two words: the key, and nothing
//! ```

use std::sync::OnceLock;

use pyo3::ffi;

use crate::capi::error::unless_raised;
use crate::capi::fallible::interned;
use crate::capi::inspect::clear_error;
use crate::capi::{Borrowed, Raised, Ref};

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
const TABLE_SIZE: usize = 9;
const KEY_COUNT: usize = 24;
const TABLE: usize = 32;
const FLAGS: std::ffi::c_ulong = 1 << 2 | 1 << 4; // inline values, managed dict

impl InlineValues {
    /// The self-test: creates an instance, sets each attribute, and finds out where CPython has stored it.
    #[cfg(all(Py_3_13, not(Py_3_16), not(Py_GIL_DISABLED), target_pointer_width = "64"))]
    pub(super) fn init(kind: &Ref, names: &[Ref]) -> Option<InlineValues> {
        // SAFETY: a type object. `object.__new__` makes the instance: the class adds nothing to the size of `object`.
        // Its memory is read only if the flags of the class say that its values are inline. A `Ref` owns every object.
        unsafe {
            let raw = kind.as_ptr().cast::<ffi::PyTypeObject>();
            if !are_inline(raw) {
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

/// How many names the attributes of an object can have, if they are inline: those of its class's shared keys. The keys
/// only grow, so an object of the same class with the same number has attributes of the same names.
///
/// # Safety
/// [`are_known`] holds, and the object lives.
#[inline(always)]
pub(super) unsafe fn name_count(object: *mut ffi::PyObject) -> Option<usize> {
    // SAFETY: the caller's promise. The memory is read only if the values of the class are inline.
    unsafe {
        let class = ffi::Py_TYPE(object);
        (are_inline(class) && header(object).is_some()).then(|| key_count(class))
    }
}

/// Are the values of instances of the class inline, and does it add nothing else to the size of `object`?
unsafe fn are_inline(class: *mut ffi::PyTypeObject) -> bool {
    // SAFETY: the callers pass a live class.
    unsafe { ffi::PyType_GetFlags(class) & FLAGS == FLAGS && (*class).tp_basicsize as usize == HEADER }
}

/// Is this the answer of [`name_count`]?
///
/// # Safety
/// The object lives, and [`name_count`] has had an answer for an object of its class.
#[inline(always)]
pub(super) unsafe fn is_name_count(object: *mut ffi::PyObject, count: usize) -> bool {
    // SAFETY: the caller's promise: values of this class are inline.
    unsafe { header(object).is_some() && key_count(ffi::Py_TYPE(object)) == count }
}

/// Can an object for which [`name_count`] has an answer have an attribute of this name?
///
/// # Safety
/// As for [`name_count`].
pub(super) unsafe fn may_have(object: *mut ffi::PyObject, name: &Ref) -> bool {
    // SAFETY: the caller's promise. A class with inline values has shared keys, which are all strings. They need not be
    // interned: a program may have set an attribute through the instance's `__dict__`. Two strings can be compared.
    unsafe {
        let class = ffi::Py_TYPE(object);
        let keys = (*class.cast::<ffi::PyHeapTypeObject>()).ht_cached_keys.cast::<u8>();
        let entries = keys.add(TABLE + (1 << *keys.add(TABLE_SIZE))).cast::<[*mut ffi::PyObject; 2]>();
        (0..key_count(class))
            .any(|index| ffi::PyUnicode_Compare((*entries.add(index))[0], name.as_ptr()) == 0)
    }
}

/// Is the layout of shared keys the one that this file was written for? The self-test of [`name_count`] and
/// [`may_have`]: an attribute that is set adds a name to the keys of its class, and another dict ends that.
pub(super) fn are_known() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let known = cfg!(all(Py_3_13, not(Py_3_16), not(Py_GIL_DISABLED), target_pointer_width = "64"))
            && unless_raised(self_test()) == Some(true);
        clear_error();
        known
    })
}

fn self_test() -> Result<bool, Raised> {
    let names = [interned("first")?, interned("second")?];
    // SAFETY: a call with live arguments, whose result is owned or null with an error. The instance's memory is read
    // only if the flags of the class say that its values are inline.
    unsafe {
        let kind = (&raw mut ffi::PyType_Type).cast();
        let made = ffi::PyObject_CallFunction(kind, c"s(){}".as_ptr(), c"Sample".as_ptr());
        let class = Ref::from_owned(made).ok_or(Raised)?;
        let sample = class.call(&[])?;
        let object = sample.as_ptr();
        for (count, name) in names.iter().enumerate() {
            if name_count(object) != Some(count) || may_have(object, name) {
                return Ok(false);
            }
            sample.setattr(name, &class)?;
        }
        if name_count(object) != Some(2) || !names.iter().all(|name| may_have(object, name)) {
            return Ok(false);
        }
        let other = Ref::from_owned(ffi::PyDict_New()).ok_or(Raised)?;
        sample.setattr(&interned("__dict__")?, &other)?;
        Ok(name_count(object).is_none())
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
