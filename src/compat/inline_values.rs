//! The attributes of an instance of a class written in Python, where CPython keeps them.
//!
//! Since 3.13 the values lie behind the object itself, in an order that the class remembers. Reading one is a load,
//! where the public API takes a hundred instructions and more. The layout is private to CPython. So it is used only on
//! the versions that it was written down for, and only for a class on which the self-test of [`InlineValues::init`] has
//! seen each attribute appear where it should. Everywhere else the caller uses the public API.
//!
//! ```text
//! object - 24   the instance's dict, if a program has asked for it
//! object        reference count, class
//! object + 16   capacity, size (both u8): places, and how many of them are taken
//! object + 18   embedded, valid (both u8): these places are the instance's attributes
//! object + 24   the places
//! ```

use pyo3::ffi;

use crate::capi::Ref;

/// Where the attributes of one class lie.
#[derive(Debug)]
pub(super) struct InlineValues {
    places: Vec<usize>,
    /// The places are the first ones, in any order, and can be compared as one row.
    row: bool,
}

const HEADER: usize = size_of::<ffi::PyObject>();
const VALUES: usize = HEADER + 8;
const DICT: isize = -3 * size_of::<usize>() as isize;

impl InlineValues {
    /// The self-test: sets each attribute on an instance of its own, and looks where it went.
    #[cfg(all(Py_3_13, not(Py_3_16), not(Py_GIL_DISABLED), target_pointer_width = "64"))]
    pub(super) fn init(kind: &Ref, names: &[Ref]) -> Option<InlineValues> {
        const FLAGS: std::ffi::c_ulong = 1 << 2 | 1 << 4; // inline values, managed dict
        // SAFETY: a type object. `object.__new__`, which such a class has, makes the instance, whose memory is read only
        // if the class says that its values are inline. A `Ref` owns every object.
        unsafe {
            let raw = kind.as_ptr().cast::<ffi::PyTypeObject>();
            if (*raw).tp_flags & FLAGS != FLAGS || (*raw).tp_basicsize as usize != HEADER {
                return None;
            }
            let nothing = Ref::from_owned(ffi::PyTuple_New(0))?;
            let make = ffi::PyBaseObject_Type.tp_new?;
            let sample = Ref::from_owned(make(raw, nothing.as_ptr(), std::ptr::null_mut()))?;
            let object = sample.as_ptr();
            let mut places = Vec::with_capacity(names.len());
            for (count, name) in names.iter().enumerate() {
                let marker = Ref::from_owned(ffi::PyList_New(0))?;
                if header(object) != Some(count)
                    || ffi::PyObject_SetAttr(object, name.as_ptr(), marker.as_ptr()) < 0
                {
                    return None;
                }
                let capacity = *object.cast::<u8>().add(HEADER);
                let mut found =
                    (0..usize::from(capacity)).filter(|&place| *value(object, place) == marker.as_ptr());
                places.push(found.next()?);
            }
            if header(object) != Some(names.len()) || !(*dict(object)).is_null() {
                return None;
            }
            // Asking for the dict of an instance leaves its values in place. Another dict takes them away.
            let own = Ref::from_owned(ffi::PyObject_GetAttrString(object, c"__dict__".as_ptr()))?;
            let kept = *dict(object) == own.as_ptr() && header(object) == Some(names.len());
            let other = Ref::from_owned(ffi::PyDict_New())?;
            let replaced = ffi::PyObject_SetAttrString(object, c"__dict__".as_ptr(), other.as_ptr()) == 0;
            let row = (0..places.len()).all(|place| places.contains(&place));
            (kept && replaced && header(object).is_none()).then_some(InlineValues { places, row })
        }
    }

    #[cfg(not(all(Py_3_13, not(Py_3_16), not(Py_GIL_DISABLED), target_pointer_width = "64")))]
    pub(super) fn init(_kind: &Ref, _names: &[Ref]) -> Option<InlineValues> {
        None
    }

    /// Does the instance have none but these attributes, where the self-test has found them?
    ///
    /// # Safety
    /// `object` is an instance of the very class.
    #[inline(always)]
    pub(super) unsafe fn are_all(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: the caller's word.
        unsafe {
            let Some(size) = header(object) else { return false };
            let capacity = usize::from(*object.cast::<u8>().add(HEADER));
            if self.row && self.places.len() <= capacity {
                let row = std::slice::from_raw_parts(value(object, 0), self.places.len());
                // Without a branch per place, the compiler compares several of them at once.
                return row.iter().map(|value| usize::from(!value.is_null())).sum::<usize>() == size;
            }
            let known =
                self.places.iter().filter(|&&place| place < capacity && !(*value(object, place)).is_null());
            known.count() == size
        }
    }

    /// Attribute `index`; nothing if it is not set or lies elsewhere.
    ///
    /// # Safety
    /// `object` is an instance of the very class.
    #[inline(always)]
    pub(super) unsafe fn get(&self, object: *mut ffi::PyObject, index: usize) -> Option<Ref> {
        // SAFETY: the caller's word.
        unsafe { self.place(object, index).and_then(|place| Ref::from_nullable(*place)) }
    }

    /// Sets an attribute that is set already; gives the value back if that is not possible here.
    ///
    /// # Safety
    /// As [`InlineValues::get`].
    #[inline(always)]
    pub(super) unsafe fn set(&self, object: *mut ffi::PyObject, index: usize, new: Ref) -> Result<(), Ref> {
        // SAFETY: the caller's word. A dict may have a watcher, so CPython sets the attributes of an instance that has
        // one. The old value is dropped last.
        unsafe {
            match self.place(object, index) {
                Some(place) if !(*place).is_null() && (*dict(object)).is_null() => {
                    drop(Ref::from_owned(place.replace(new.into_ptr())));
                    Ok(())
                }
                _ => Err(new),
            }
        }
    }

    #[inline(always)]
    unsafe fn place(&self, object: *mut ffi::PyObject, index: usize) -> Option<*mut *mut ffi::PyObject> {
        let place = self.places[index];
        // SAFETY: the caller's word, and the place is one of those that the object has.
        unsafe {
            let capacity = usize::from(*object.cast::<u8>().add(HEADER));
            (header(object).is_some() && place < capacity).then(|| value(object, place))
        }
    }
}

/// How many attributes the object has, if they are inline.
#[inline(always)]
unsafe fn header(object: *mut ffi::PyObject) -> Option<usize> {
    // SAFETY: the caller's object is of a class with inline values.
    unsafe {
        let header = object.cast::<u8>().add(HEADER);
        (*header.add(2) == 1 && *header.add(3) == 1).then(|| usize::from(*header.add(1)))
    }
}

#[inline(always)]
unsafe fn value(object: *mut ffi::PyObject, place: usize) -> *mut *mut ffi::PyObject {
    // SAFETY: as in `header`, with `place` below its capacity.
    unsafe { object.cast::<u8>().add(VALUES).cast::<*mut ffi::PyObject>().add(place) }
}

#[inline(always)]
unsafe fn dict(object: *mut ffi::PyObject) -> *mut *mut ffi::PyObject {
    // SAFETY: as in `header`: a managed dict lies in front of the object.
    unsafe { object.cast::<u8>().offset(DICT).cast() }
}
