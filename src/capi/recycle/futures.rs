//! Reuses the memory of asyncio's futures whose last reference native code drops.
//!
//! Each wait makes a future, which nobody needs any more when it has woken its task. The queue entry that wakes the
//! task most often holds the last reference then. [`drop_future`] does with such a future what its class does, up to
//! the point where the memory would be freed. [`new_uninitialised`] makes the next one of it, as `tp_new` would. This
//! saves 400 of the 7,200 instructions of a wait.

use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::freelist::Freelist;
use crate::capi::fallible::Fallible;
use crate::capi::future::is_asyncios;
use crate::capi::imports::imports;
use crate::capi::object::Ref;
use crate::capi::once::Once;
use crate::capi::section::REUSES;

/// The list is long enough to serve 64 connections in a turn without an allocation.
static DEAD: Freelist = Freelist::new(64);

/// Drops an object. The memory of a future of asyncio's own class, to which this is the last reference, is kept.
#[inline(always)]
pub(crate) fn drop_future(object: Ref) {
    if REUSES && object.is_unique() && is_asyncios(&object) {
        end(object);
    }
}

/// Does what the `tp_dealloc` of asyncio's future does, in the same order.
fn end(future: Ref) {
    let object = future.as_ptr();
    // SAFETY: the last reference to a future of asyncio's class, which was made by its `tp_alloc`; the slots are those
    // of the class. A return before the collector has forgotten the future leaves it as it was, and drops it.
    unsafe {
        let class = future.kind();
        let (Some(finalize), Some(clear)) = ((*class).tp_finalize, (*class).tp_clear) else { return };
        if ffi::PyObject_GC_IsFinalized(object) != 0 {
            // The collector has run its finalizer, in a cycle that the finalizer resurrected. The mark of that cannot
            // be removed.
            return;
        }
        // This logs an exception that was never retrieved. An exception handler that is passed the future may keep
        // it.
        finalize(object);
        if !future.is_unique() || PLACES.get().is_none_or(|places| words(&future, *places) != [0, 0]) {
            return;
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        clear(object);
        if DEAD.keep(future.into_ptr()) {
            return;
        }
        ffi::PyObject_GC_Del(object.cast());
        // Instances of a static type, as this one is in 3.11, hold no reference to it.
        if cfg!(Py_3_12) || ffi::PyType_HasFeature(class, ffi::Py_TPFLAGS_HEAPTYPE) != 0 {
            ffi::Py_DECREF(class.cast());
        }
    }
}

/// A future on which `__init__` was not called yet, from the memory of a dead one. Its fields are those of a cleared
/// future, all of which `__init__` sets.
#[inline(always)]
pub(crate) fn new_uninitialised() -> Option<Ref> {
    // SAFETY: only futures of asyncio's class are kept. Their fields are valid, so that the collector may look at them.
    unsafe {
        let object = DEAD.take()?;
        ffi::PyObject_GC_Track(object.cast());
        Ref::from_owned(object)
    }
}

/// Where a future has its attributes and its weak references, in bytes. Empty if the self-test has failed. Then no
/// memory is kept.
static PLACES: Once<[isize; 2]> = Once::new();

/// CPython keeps the dict of an object whose class says -1 here, before the object.
const MANAGED_DICT: isize = -3 * size_of::<usize>() as isize;

/// The words at these places. Zero means that the future has no attributes, or that no weak reference to it was made.
///
/// # Safety
/// These are the places of the object's class.
#[inline(always)]
unsafe fn words(object: &Ref, places: [isize; 2]) -> [usize; 2] {
    // SAFETY: the caller's contract.
    places.map(|place| unsafe { *object.as_ptr().cast::<u8>().offset(place).cast::<usize>() })
}

/// Finds out where futures have their attributes and weak references. Called once, by the module's initialisation.
pub(crate) fn init(py: Python<'_>, event_loop: &Ref) {
    if REUSES && let Ok(Some(places)) = self_test(py, event_loop) {
        PLACES.set(places);
    }
}

/// Tests that the two words change when a dict and a weak reference are made.
fn self_test(py: Python<'_>, event_loop: &Ref) -> PyResult<Option<[isize; 2]>> {
    let names = imports();
    let future = names.future.call_keywords([], &names.future_keywords, [event_loop.borrow()])?;
    if !is_asyncios(&future) {
        return Ok(None);
    }
    // SAFETY: a live object. A negative offset leads into what the allocator has put before the object, which a class of
    // -1 has there; the words are compared, never followed.
    unsafe {
        let class = &*future.kind();
        let dict = if class.tp_dictoffset == -1 { MANAGED_DICT } else { class.tp_dictoffset };
        let places = [dict, class.tp_weaklistoffset];
        if places.contains(&0) || words(&future, places) != [0, 0] {
            return Ok(None);
        }
        let weak = Bound::from_owned_ptr_or_err(py, ffi::PyWeakref_NewRef(future.as_ptr(), null_mut()))?;
        future.bind(py).setattr(Fallible("wakeloop"), true)?;
        // Since 3.14 attributes lie inside the object until somebody asks for the dict. The word does not show those,
        // so the test fails.
        if words(&future, places)[0] == 0 {
            return Ok(None);
        }
        let attributes = ffi::PyObject_GenericGetDict(future.as_ptr(), null_mut());
        let attributes = Bound::from_owned_ptr_or_err(py, attributes)?;
        let expected = [&attributes, &weak].map(|object| object.as_ptr() as usize);
        Ok((words(&future, places) == expected).then_some(places))
    }
}
