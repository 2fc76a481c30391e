//! The futures that a loop makes: for `create_future`, and for what waits natively.
//!
//! A read that has to wait makes a future which is of no use to anybody once it has woken the task. Making and unmaking
//! it costs as much as all else of the wait. So the loop keeps the [`Futures`] by which it has woken somebody, and when
//! nobody else has hold of one any more, its `__init__` makes a new future of it: what is seen is what would be seen if
//! asyncio's class had found the same memory.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::core::{Core, core_of};
use crate::capi::call::{call_keywords, call_tuple, initialize};
use crate::capi::fallible::dict;
use crate::capi::future::is_asyncios;
use crate::capi::imports::imports;
use crate::capi::once::Once;
use crate::capi::{Fallible, Raised, Ref, Slot};
use crate::compat::patches;

/// How many spent futures a loop keeps at most: as many connections are served in a turn without making one.
const MOST: usize = 64;
/// After so many looks in a row that have found the oldest in somebody's hands, it is his for good.
const PATIENCE: u32 = 2 * MOST as u32;

/// What a loop has for making futures.
#[derive(Debug)]
pub(crate) struct Futures {
    /// `{"loop": loop}`.
    arguments: Slot,
    /// Done with `None`, the oldest first.
    spent: UnsafeCell<VecDeque<Ref>>,
    /// How often the oldest was not free.
    misses: Cell<u32>,
}

impl Futures {
    pub(crate) fn new() -> Futures {
        Futures { arguments: Slot::empty(), spent: UnsafeCell::new(VecDeque::new()), misses: Cell::new(0) }
    }

    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; no borrow is held while Python code can run")]
    #[inline(always)]
    fn spent(&self) -> &mut VecDeque<Ref> {
        // SAFETY: see the reason above.
        unsafe { &mut *self.spent.get() }
    }

    /// The oldest, if nobody else has hold of it.
    #[inline(always)]
    fn take(&self) -> Option<Ref> {
        let oldest = self.spent().front()?;
        // SAFETY: a live object.
        if unsafe { ffi::Py_REFCNT(oldest.as_ptr()) } == 1 {
            self.misses.set(0);
            return self.spent().pop_front().filter(is_blank);
        }
        self.miss();
        None
    }

    #[inline(always)]
    fn miss(&self) {
        self.misses.set(self.misses.get() + 1);
        if self.misses.get() == PATIENCE {
            self.misses.set(0);
            let oldest = self.spent().pop_front();
            drop(oldest);
        }
    }

    /// Lets everything go that refers back to the loop.
    pub(crate) fn clear(&self) {
        self.arguments.clear();
        let spent = std::mem::take(self.spent());
        drop(spent);
    }

    /// For the collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref) -> i32) -> i32 {
        let spent = self.spent().iter().map(&mut *visit).find(|&result| result != 0);
        spent.unwrap_or_else(|| self.arguments.get().map_or(0, |arguments| visit(&arguments)))
    }
}

/// The future has woken its task with `None`, and the loop may make another of it.
#[inline(always)]
pub(crate) fn keep_spent(core: &Core, future: &Ref) {
    let futures = &core.futures;
    if futures.spent().len() < MOST
        && !core.instrumentation.is_active()
        && !core.is_closed()
        && is_asyncios(future)
        && is_blank(future)
    {
        futures.spent().push_back(future.clone_ref());
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
        // SAFETY: the caller's word.
        unsafe { word(future, self.dict) == 0 && word(future, self.weak) == 0 }
    }
}

/// Empty if they are not where we look.
static PLACES: Once<Places> = Once::new();

/// CPython keeps the dict of an object whose class says -1 here, before the object.
const MANAGED_DICT: isize = -3 * size_of::<usize>() as isize;

/// Has nobody given it an attribute, or made a weak reference to it? Both would last.
#[inline(always)]
fn is_blank(future: &Ref) -> bool {
    // SAFETY: a future of the class for which the places were proven.
    unsafe { PLACES.get().is_some_and(|places| places.are_empty(future)) }
}

/// # Safety
/// The object has a word there.
#[inline(always)]
unsafe fn word(object: &Ref, place: isize) -> usize {
    // SAFETY: the caller's word.
    unsafe { *object.as_ptr().cast::<u8>().offset(place).cast::<usize>() }
}

/// Finds out where futures have their attributes and weak references. Called once, by the module's initialisation.
pub(crate) fn learn(py: Python<'_>, event_loop: &Bound<'_, PyAny>) {
    // Whatever goes wrong in it: nothing is kept then.
    if let Ok(Some(places)) = prove(py, event_loop) {
        PLACES.set(places);
    }
}

/// Looks whether the words become what they are to be.
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
        // Where attributes lie inside the object until somebody asks for the dict (3.14), there is no word to look at.
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
                return match core.futures.take() {
                    Some(spent) => initialize(&spent, positional, keywords).map(|()| spent),
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
