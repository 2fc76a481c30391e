//! The futures that a loop makes: for `create_future`, and for what waits natively.

use std::ptr::null_mut;

use pyo3::ffi;

use super::core::{Core, core_of};
use crate::capi::call::{call_keywords, call_tuple, initialize};
use crate::capi::imports::imports;
use crate::capi::recycle::futures::new_uninitialised;
use crate::capi::{Raised, Ref};
use crate::compat::patches;

/// `asyncio.Future(loop=loop)`, for a loop of ours.
#[inline(always)]
pub(crate) fn new_future(event_loop: *mut ffi::PyObject) -> Result<Ref, Raised> {
    let names = imports();
    let class = patches::future_class()?;
    if class.as_ptr() == names.future.as_ptr() {
        // SAFETY: the callers have loops of ours; an empty tuple, and a dict that asyncio's class only reads.
        unsafe {
            let core = core_of(event_loop);
            if core.future_arguments.is_empty() {
                make_arguments(core, event_loop)?;
            }
            if let Some(arguments) = core.future_arguments.get() {
                let (positional, keywords) = (names.no_arguments.as_ptr(), arguments.as_ptr());
                return match new_uninitialised() {
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

/// A dict of arguments costs as much as all the rest of a future, and is the same for each. A closed loop keeps none: the
/// dict refers back to it.
#[cold]
fn make_arguments(core: &Core, event_loop: *mut ffi::PyObject) -> Result<(), Raised> {
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
        core.future_arguments.set(Some(arguments));
    }
    Ok(())
}
