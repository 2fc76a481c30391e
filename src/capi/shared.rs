//! Looks at what other threads may change meanwhile: dicts, lists, classes, functions.
//!
//! With a GIL nothing changes between two calls of the C API, so a borrowed reference can be made an owned one, and a
//! field of a struct can be read. On a free-threaded build the functions that return owned references are used instead,
//! and fields are read as atomics. Those are only compared, so they need no order: who compares them with what it has
//! seen before is right about the moment at which it looked. Only a version tag vouches for what is read after it.

use std::ffi::{c_int, c_uint};

use pyo3::ffi;

use super::error::Raised;
use super::object::{Borrowed, Ref};

cfg_select! {
    Py_GIL_DISABLED => {
        /// What a field of an object refers to. Another thread may replace it, so it is owned.
        #[derive(Debug)]
        pub(crate) struct Found<'a>(Ref, std::marker::PhantomData<&'a Ref>);

        impl std::ops::Deref for Found<'_> {
            type Target = Ref;

            fn deref(&self) -> &Ref {
                &self.0
            }
        }

        #[inline(always)]
        pub(crate) fn found(object: Borrowed<'_>) -> Found<'_> {
            Found(object.to_owned(), std::marker::PhantomData)
        }
    }
    _ => {
        /// What a field of an object refers to. It is valid until other code runs.
        pub(crate) type Found<'a> = Borrowed<'a>;

        #[inline(always)]
        pub(crate) fn found(object: Borrowed<'_>) -> Found<'_> {
            object
        }
    }
}

/// `dict[name]`, or `None` if there is no such key or the lookup has failed; then an error is set.
///
/// # Safety
/// `dict` is a live dict, and this thread is attached.
#[inline(always)]
pub(crate) unsafe fn dict_item(dict: *mut ffi::PyObject, name: &Ref) -> Option<Ref> {
    cfg_select! {
        Py_GIL_DISABLED => {
            let mut found = std::ptr::null_mut();
            // SAFETY: live objects; the function stores an owned reference or null.
            unsafe {
                ffi::PyDict_GetItemRef(dict, name.as_ptr(), &mut found);
                Ref::from_owned(found)
            }
        }
        _ => {
            #[allow(clippy::disallowed_methods, reason = "there is a GIL")]
            // SAFETY: live objects; a borrowed reference or null. Nothing runs before it is made an owned one.
            unsafe { Ref::from_nullable(ffi::PyDict_GetItemWithError(dict, name.as_ptr())) }
        }
    }
}

/// The item of a list at this place, or an error if the list is shorter.
pub(super) fn list_item(list: &Ref, index: usize) -> Result<Ref, Raised> {
    let index = index as ffi::Py_ssize_t;
    cfg_select! {
        Py_GIL_DISABLED => {
            // SAFETY: a live object, which the function checks; an owned reference or null with an error.
            unsafe { Ref::from_owned(ffi::PyList_GetItemRef(list.as_ptr(), index)) }.ok_or(Raised)
        }
        _ => {
            #[allow(clippy::disallowed_methods, reason = "there is a GIL")]
            // SAFETY: a live object, which the function checks; a borrowed reference or null with an error.
            unsafe { Ref::from_nullable(ffi::PyList_GetItem(list.as_ptr(), index)) }.ok_or(Raised)
        }
    }
}

/// The tuple of a class and its bases, in method resolution order.
///
/// # Safety
/// `class` is a live type, and this thread is attached.
pub(crate) unsafe fn resolution_order(class: *mut ffi::PyTypeObject) -> Option<Ref> {
    cfg_select! {
        Py_GIL_DISABLED => {
            // SAFETY: a live type; an owned reference or null with an error.
            let order = unsafe { Ref::from_owned(ffi::PyObject_GetAttrString(class.cast(), c"__mro__".as_ptr())) };
            if order.is_none() {
                super::raised::clear_error();
            }
            order
        }
        _ => {
            // SAFETY: a live type.
            unsafe { Ref::from_nullable((*class).tp_mro) }
        }
    }
}

/// The dict of a class. `None` for a static type that keeps it elsewhere.
///
/// # Safety
/// `class` is a live type, and this thread is attached.
pub(crate) unsafe fn class_dict(class: *mut ffi::PyTypeObject) -> Option<Ref> {
    cfg_select! {
        Py_GIL_DISABLED => {
            // SAFETY: a live type; an owned reference or null.
            unsafe { Ref::from_owned(ffi::PyType_GetDict(class)) }
        }
        _ => {
            // SAFETY: a live type.
            unsafe { Ref::from_nullable((*class).tp_dict) }
        }
    }
}

/// The version tag of a class: it changes with the class and its bases, and is never used again. 0 is none.
///
/// # Safety
/// `class` is a live type.
#[inline(always)]
pub(crate) unsafe fn version_tag(class: *mut ffi::PyTypeObject) -> c_uint {
    cfg_select! {
        Py_GIL_DISABLED => {
            // Acquire, for the interpreter's store: it gives a class a tag in the lock in which the class was changed,
            // and what is found in the class now will be remembered under this tag.
            // SAFETY: a live type. The interpreter writes the field as an atomic.
            unsafe { std::sync::atomic::AtomicU32::from_ptr(&raw mut (*class).tp_version_tag) }
                .load(std::sync::atomic::Ordering::Acquire)
        }
        _ => {
            // SAFETY: a live type. The field has been there since Python 2.
            unsafe { (*class).tp_version_tag }
        }
    }
}

/// The base class from which a class has its layout, to be compared only.
///
/// # Safety
/// `class` is a live type.
#[inline(always)]
pub(super) unsafe fn base_of(class: *mut ffi::PyTypeObject) -> *mut ffi::PyTypeObject {
    cfg_select! {
        Py_GIL_DISABLED => {
            // SAFETY: a live type.
            unsafe { std::sync::atomic::AtomicPtr::from_ptr(&raw mut (*class).tp_base) }
                .load(std::sync::atomic::Ordering::Relaxed)
        }
        _ => {
            // SAFETY: a live type.
            unsafe { (*class).tp_base }
        }
    }
}

/// The code object of a Python function, to be compared only.
///
/// # Safety
/// `function` is a live function. Its layout is in CPython's headers, and an extension is built for one version.
#[inline(always)]
pub(crate) unsafe fn code_of(function: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the caller's contract.
    let place = unsafe { &raw mut (*function.cast::<ffi::PyFunctionObject>()).func_code };
    cfg_select! {
        Py_GIL_DISABLED => {
            // SAFETY: as above.
            unsafe { std::sync::atomic::AtomicPtr::from_ptr(place) }.load(std::sync::atomic::Ordering::Relaxed)
        }
        _ => {
            // SAFETY: as above.
            unsafe { *place }
        }
    }
}

/// A number in an object that its methods may change.
///
/// # Safety
/// The place lies inside of a live object.
#[inline(always)]
pub(crate) unsafe fn number(place: *const c_int) -> c_int {
    cfg_select! {
        Py_GIL_DISABLED => {
            // SAFETY: the caller's contract.
            unsafe { std::sync::atomic::AtomicI32::from_ptr(place.cast_mut()) }
                .load(std::sync::atomic::Ordering::Relaxed)
        }
        _ => {
            // SAFETY: the caller's contract.
            unsafe { *place }
        }
    }
}

/// From now on nobody counts the references to `object`, which lives as long as the process.
///
/// On a free-threaded build, the thread that has made an object counts its own references, and all others use atomic
/// operations. An object that the loops of several threads count for each callback then costs them more than all else
/// that they do: its cache line goes from one processor to the next. The interpreter does the same with its own classes
/// and names (`_Py_SetImmortal`). With a GIL nothing is gained, so nothing changes.
pub(crate) fn never_count(_object: &Ref) {
    cfg_select! {
        Py_GIL_DISABLED => {
            /// `_Py_IMMORTAL_REFCNT_LOCAL`: who finds this number counts nothing, in either of the two places.
            const IMMORTAL: u32 = u32::MAX;
            // Relaxed: a thread that does not see it yet counts once more, in a place that nobody reads any more.
            // SAFETY: a live object, whose field the interpreter uses as an atomic.
            unsafe { &(*_object.as_ptr()).ob_ref_local }.store(IMMORTAL, std::sync::atomic::Ordering::Relaxed);
        }
        _ => {}
    }
}

/// A new reference to an object that another thread may be about to deallocate; `None` if it is.
///
/// # Safety
/// The memory is that of an object: `tp_dealloc` of its class waits for the caller before it frees it. The object was
/// passed to [`allow_try_ref`]. This thread is attached.
#[inline(always)]
pub(crate) unsafe fn try_ref(object: *mut ffi::PyObject) -> Option<Ref> {
    cfg_select! {
        Py_GIL_DISABLED => {
            // SAFETY: the caller's contract; the function makes an owned reference, or returns 0.
            unsafe { if ffi::PyUnstable_TryIncRef(object) != 0 { Ref::from_owned(object) } else { None } }
        }
        _ => {
            // SAFETY: with the GIL held, an object whose deallocation has not begun lives.
            Some(unsafe { Ref::from_borrowed(object) })
        }
    }
}

/// From now on [`try_ref`] may be called with this object.
#[inline(always)]
pub(crate) fn allow_try_ref(_object: &Ref) {
    cfg_select! {
        Py_GIL_DISABLED => {
            // SAFETY: a live object.
            unsafe { ffi::PyUnstable_EnableTryIncRef(_object.as_ptr()) };
        }
        _ => {}
    }
}
