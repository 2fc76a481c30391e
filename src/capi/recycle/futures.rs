//! The memory of asyncio's futures that have died in our hands.
//!
//! Each wait makes a future, which nobody needs any more when it has woken its task. The queue entry that wakes the task
//! most often holds the last reference then. [`drop_future`] does with such a future what its class does, up to the point
//! where the memory would be freed. [`new_uninitialised`] makes the next one of it, as `tp_new` would.

use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::freelist::Freelist;
use crate::capi::fallible::{Fallible, dict};
use crate::capi::future::is_asyncios;
use crate::capi::imports::imports;
use crate::capi::object::Ref;
use crate::capi::once::Once;

/// So many connections can be served in a turn without an allocation.
static DEAD: Freelist = Freelist::new(64);

/// Drops an object. The memory of a future of asyncio's own class, to which this is the last reference, is kept.
#[inline(always)]
pub(crate) fn drop_future(object: Ref) {
    if object.is_unique() && is_asyncios(&object) {
        end(object);
    }
}

/// Does what the `tp_dealloc` of asyncio's future does, in the same order.
fn end(future: Ref) {
    let object = future.as_ptr();
    // SAFETY: the last reference to a future of asyncio's class, which was made by its `tp_alloc`; the slots are those of
    // the class. A return before the collector has forgotten the future leaves it as it was, and drops it.
    unsafe {
        let class = ffi::Py_TYPE(object);
        let (Some(finalize), Some(clear)) = ((*class).tp_finalize, (*class).tp_clear) else { return };
        if ffi::PyObject_GC_IsFinalized(object) != 0 {
            // The collector has run its finalizer, in a cycle that came back to life. The mark could not be removed.
            return;
        }
        // Logs an exception that was never retrieved. Nobody keeps the future but an exception handler that is shown it.
        finalize(object);
        if !future.is_unique() || !has_nothing_attached(&future) {
            return;
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        clear(object);
        if !DEAD.keep(future.into_ptr()) {
            ffi::PyObject_GC_Del(object.cast());
        }
        // Instances of a static type, as this one is in 3.11, hold no reference to it.
        if cfg!(Py_3_12) || (*class).tp_flags & ffi::Py_TPFLAGS_HEAPTYPE != 0 {
            ffi::Py_DECREF(class.cast());
        }
    }
}

/// A future on which `__init__` was not called yet, from the memory of a dead one. Its fields are those of a cleared future,
/// all of which `__init__` sets.
#[inline(always)]
pub(crate) fn new_uninitialised() -> Option<Ref> {
    // SAFETY: only futures of asyncio's class are kept. Their fields are valid, so that the collector may look at them.
    unsafe {
        let object = DEAD.take(imports().future.as_ptr().cast())?;
        ffi::PyObject_GC_Track(object.cast());
        Ref::from_owned(object)
    }
}

/// Where a future has its attributes and its weak references.
#[derive(Clone, Copy, Debug)]
struct Places {
    dict: isize,
    weak: isize,
}

/// Empty if they are not where we look. Then no memory is kept.
static PLACES: Once<Places> = Once::new();

/// CPython keeps the dict of an object whose class says -1 here, before the object.
const MANAGED_DICT: isize = -3 * size_of::<usize>() as isize;

impl Places {
    /// # Safety
    /// `future` is of the class whose places these are.
    #[inline(always)]
    unsafe fn are_empty(self, future: &Ref) -> bool {
        // SAFETY: the caller's contract.
        unsafe { word(future, self.dict) == 0 && word(future, self.weak) == 0 }
    }
}

/// True if nobody has given the future an attribute, or made a weak reference to it.
#[inline(always)]
fn has_nothing_attached(future: &Ref) -> bool {
    // SAFETY: a future of the class for which the places were tested.
    unsafe { PLACES.get().is_some_and(|places| places.are_empty(future)) }
}

/// # Safety
/// The object has a word there.
#[inline(always)]
unsafe fn word(object: &Ref, place: isize) -> usize {
    // SAFETY: the caller's contract.
    unsafe { *object.as_ptr().cast::<u8>().offset(place).cast::<usize>() }
}

/// Finds out where futures have their attributes and weak references. Called once, by the module's initialisation.
pub(crate) fn init(py: Python<'_>, event_loop: &Bound<'_, PyAny>) {
    if let Ok(Some(places)) = self_test(py, event_loop) {
        PLACES.set(places);
    }
}

/// Tests that the two words change when a dict and a weak reference are made.
fn self_test(py: Python<'_>, event_loop: &Bound<'_, PyAny>) -> PyResult<Option<Places>> {
    let arguments = dict(py)?;
    arguments.set_item(Fallible("loop"), event_loop)?;
    let future = Ref::from(imports().future.bind(py).call((), Some(&arguments))?);
    if !is_asyncios(&future) {
        return Ok(None);
    }
    // SAFETY: a live object. A negative offset leads into what the allocator has put before the object, which a class of
    // -1 has there; the words are compared, never followed.
    unsafe {
        let class = &*ffi::Py_TYPE(future.as_ptr());
        let dict = if class.tp_dictoffset == -1 { MANAGED_DICT } else { class.tp_dictoffset };
        let places = Places { dict, weak: class.tp_weaklistoffset };
        if dict == 0 || places.weak == 0 || !places.are_empty(&future) {
            return Ok(None);
        }
        let weak = Bound::from_owned_ptr_or_err(py, ffi::PyWeakref_NewRef(future.as_ptr(), null_mut()))?;
        future.bind(py).setattr(Fallible("wakeloop"), true)?;
        // Since 3.14 attributes lie inside the object until somebody asks for the dict. No word tells of those.
        if word(&future, dict) == 0 {
            return Ok(None);
        }
        let attributes = ffi::PyObject_GenericGetDict(future.as_ptr(), null_mut());
        let attributes = Bound::from_owned_ptr_or_err(py, attributes)?;
        let found = word(&future, dict) == attributes.as_ptr() as usize
            && word(&future, places.weak) == weak.as_ptr() as usize;
        Ok(found.then_some(places))
    }
}
