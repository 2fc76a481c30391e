//! Creates futures: for `create_future`, and for tasks that wait for native code.

use pyo3::prelude::*;

use super::core::Core;
use crate::capi::call::{call_tuple, initialize};
use crate::capi::fallible::{dict, interned};
use crate::capi::imports::imports;
use crate::capi::recycle::futures::new_uninitialised;
use crate::capi::{Raised, Ref};
use crate::compat::patches;

/// `asyncio.Future(loop=loop)`.
#[inline(always)]
pub(crate) fn new_future(core: &Core) -> Result<Ref, Raised> {
    let names = imports();
    let class = patches::future_class()?;
    if class.is(&names.future) {
        if core.future_arguments.is_empty() {
            make_arguments(core)?;
        }
        if let Some(keywords) = core.future_arguments.get() {
            let positional = names.no_arguments.as_ptr();
            // SAFETY: an empty tuple, and a dict, which asyncio's class only reads.
            return unsafe {
                match new_uninitialised() {
                    Some(future) => initialize(&future, positional, keywords.as_ptr()).map(|()| future),
                    None => call_tuple(&class, positional, keywords.as_ptr()),
                }
            };
        }
    }
    class.call_keywords([], &names.future_keywords, [core.borrow()])
}

/// Makes the dict of keyword arguments, which is the same for all futures of a loop: a new one per future would double
/// the cost of the future. A closed loop keeps no dict, because the dict refers to the loop.
#[cold]
fn make_arguments(core: &Core) -> Result<(), Raised> {
    if !core.is_closed() {
        let event_loop = core.borrow();
        let arguments = dict(event_loop.py())?;
        // CPython finds an interned name without comparing strings.
        let name = interned("loop")?;
        arguments.set_item(name.bind(event_loop.py()), event_loop.bind(event_loop.py()))?;
        core.future_arguments.set(Some(arguments.into_any().into()));
    }
    Ok(())
}
