//! The futures that a loop makes: for `create_future`, and for what waits natively.
//!
//! Each wait makes a future that nobody needs any more when it has woken its task. The queue entry that wakes the task
//! most often holds the last reference then. [`release`] ends such a future as its class would, up to the point where
//! the memory is freed, and keeps the memory for the next future. This cannot be observed, because the object is dead:
//! its finalizer and its `tp_clear` have run, it has no weak reference and no dict, and the collector has forgotten it.
//! [`new_future`] makes an object of it as the allocator would: zeroed, and the youngest that the collector knows.

use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::core::{Core, core_of};
use crate::capi::call::{call_keywords, call_tuple, initialize};
use crate::capi::fallible::dict;
use crate::capi::freelist::Freelist;
use crate::capi::future::is_asyncios;
use crate::capi::imports::imports;
use crate::capi::once::Once;
use crate::capi::{Fallible, Raised, Ref, Slot};
use crate::compat::patches;

/// The memory of dead futures, for any loop. As many connections are served in a turn without an allocation.
static DEAD: Freelist<64> = Freelist::new();

/// What a loop has for making futures.
#[derive(Debug)]
pub(crate) struct Futures {
    /// `{"loop": loop}`. asyncio's class reads it and does not keep it.
    arguments: Slot,
}

impl Futures {
    pub(crate) fn new() -> Futures {
        Futures { arguments: Slot::empty() }
    }

    /// Drops what refers back to the loop.
    pub(crate) fn clear(&self) {
        self.arguments.clear();
    }

    /// For the collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref) -> i32) -> i32 {
        self.arguments.get().map_or(0, |arguments| visit(&arguments))
    }
}

/// Drops the argument of a callback that has run. A future of asyncio's own class that nobody else holds is made ready
/// to be used again.
#[inline(always)]
pub(crate) fn release(argument: Ref) {
    // SAFETY: a live object.
    let last = unsafe { ffi::Py_REFCNT(argument.as_ptr()) } == 1;
    if last && is_asyncios(&argument) && has_nothing_attached(&argument) {
        end(argument);
    }
}

/// Does with a future what the `tp_dealloc` of its class does, and keeps the memory.
fn end(future: Ref) {
    let object = future.as_ptr();
    // SAFETY: the last reference to a future of asyncio's class, which was made by its `tp_alloc`. The slots are the
    // class's own, and are called in the order in which `tp_dealloc` calls them.
    unsafe {
        let class = ffi::Py_TYPE(object);
        let (Some(finalize), Some(clear)) = ((*class).tp_finalize, (*class).tp_clear) else { return };
        if ffi::PyObject_GC_IsFinalized(object) != 0 {
            // The collector has found it in a cycle that came back to life. A finalizer runs once.
            return;
        }
        finalize(object);
        if ffi::Py_REFCNT(object) != 1 || !has_nothing_attached(&future) {
            // The exception handler has been shown the future, and has kept it.
            return;
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        clear(object);
        #[cfg(not(Py_3_12))]
        if (*class).tp_flags & ffi::Py_TPFLAGS_HEAPTYPE == 0 {
            // `free_gc` drops the reference to the class that an object of a static type does not have.
            ffi::Py_INCREF(class.cast());
        }
        DEAD.free_gc(future.into_ptr());
    }
}

/// A future of asyncio's class that is as `tp_new` makes it, from the memory of a dead one.
#[inline(always)]
fn reborn() -> Option<Ref> {
    let object = DEAD.pop()?;
    // SAFETY: memory of a future of this class, which nobody refers to. Behind its header a fresh object is all zero, and
    // before it there is only the collector's header and what `has_nothing_attached` has found to be zero.
    unsafe {
        let class = imports().future.as_ptr().cast::<ffi::PyTypeObject>();
        ffi::PyObject_Init(object, class);
        let header = size_of::<ffi::PyObject>();
        object.cast::<u8>().add(header).write_bytes(0, (*class).tp_basicsize as usize - header);
        ffi::PyObject_GC_Track(object.cast());
        Ref::from_owned(object)
    }
}

/// Where a future of asyncio's has its attributes and its weak references.
#[derive(Clone, Copy, Debug)]
struct Places {
    dict: isize,
    weak: isize,
}

impl Places {
    /// # Safety
    /// `future` is of the class whose places these are.
    #[inline(always)]
    unsafe fn are_empty(self, future: &Ref) -> bool {
        // SAFETY: the caller's contract.
        unsafe { word(future, self.dict) == 0 && word(future, self.weak) == 0 }
    }
}

/// Empty if they are not where we look.
static PLACES: Once<Places> = Once::new();

/// CPython keeps the dict of an object whose class says -1 here, before the object.
const MANAGED_DICT: isize = -3 * size_of::<usize>() as isize;

/// True if nobody has given the future an attribute, or made a weak reference to it.
#[inline(always)]
fn has_nothing_attached(future: &Ref) -> bool {
    // SAFETY: a future of the class for which the places were proven.
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
pub(crate) fn learn(py: Python<'_>, event_loop: &Bound<'_, PyAny>) {
    // If anything goes wrong in it, no future is used again.
    if let Ok(Some(places)) = prove(py, event_loop) {
        PLACES.set(places);
    }
}

/// Tests that the two words change when a dict and a weak reference are made.
fn prove(py: Python<'_>, event_loop: &Bound<'_, PyAny>) -> PyResult<Option<Places>> {
    let arguments = dict(py)?;
    arguments.set_item(Fallible("loop"), event_loop)?;
    let future = Ref::from(imports().future.bind(py).call((), Some(&arguments))?);
    if !is_asyncios(&future) {
        return Ok(None);
    }
    // SAFETY: a live object. A negative offset leads into what the allocator has put before the object, which the class
    // of -1 has there; the words are compared, never followed.
    unsafe {
        let kind = &*ffi::Py_TYPE(future.as_ptr());
        let dict = if kind.tp_dictoffset == -1 { MANAGED_DICT } else { kind.tp_dictoffset };
        let places = Places { dict, weak: kind.tp_weaklistoffset };
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

/// `asyncio.Future(loop=loop)`, for a loop of ours.
#[inline(always)]
pub(crate) fn new_future(event_loop: *mut ffi::PyObject) -> Result<Ref, Raised> {
    let names = imports();
    let class = patches::future_class()?;
    if class.as_ptr() == names.future.as_ptr() {
        // SAFETY: the callers have loops of ours; an empty tuple, and a dict that the class does not keep.
        unsafe {
            let core = core_of(event_loop);
            if core.futures.arguments.is_empty() {
                keep_arguments(core, event_loop)?;
            }
            if let Some(arguments) = core.futures.arguments.get() {
                let (positional, keywords) = (names.no_arguments.as_ptr(), arguments.as_ptr());
                return match reborn() {
                    Some(future) => initialize(&future, positional, keywords).map(|()| future),
                    None => call_tuple(&class, positional, keywords),
                };
            }
        }
    }
    let mut stack = [null_mut(), event_loop];
    // SAFETY: no positional and one keyword argument, whose name is in the tuple.
    unsafe { call_keywords(&class, stack.as_mut_ptr().add(1), 0, names.future_keywords.as_ptr()) }
}

/// A dict of arguments costs as much as all the rest of a future, and is the same for each. A closed loop keeps none:
/// the dict refers back to it.
#[cold]
fn keep_arguments(core: &Core, event_loop: *mut ffi::PyObject) -> Result<(), Raised> {
    if core.is_closed() {
        return Ok(());
    }
    // SAFETY: the first of the names is `loop`; a fresh dict, and live objects to put into it.
    unsafe {
        let arguments = Ref::from_owned(ffi::PyDict_New()).ok_or(Raised)?;
        let name = ffi::PyTuple_GET_ITEM(imports().future_keywords.as_ptr(), 0);
        if ffi::PyDict_SetItem(arguments.as_ptr(), name, event_loop) < 0 {
            return Err(Raised);
        }
        core.futures.arguments.set(Some(arguments));
    }
    Ok(())
}
