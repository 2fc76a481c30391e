//! Converts entries of the ready queue to handles, for Python code that runs them itself.

use pyo3::prelude::*;

use super::core::loop_ref::LoopSlot;
use super::core::ready::NativeStep;
use super::core::{Core, Entry};
use super::handle::layout::{Handle, HandleRef, Parts};
use crate::capi::call::copy_current_context;
use crate::capi::section;
use crate::capi::{Fallible, Fatal, Raised, Ref, Slot};

/// The handle of an entry. Makes one for an entry that has none.
pub(crate) fn into_handle(core: &Core, entry: Entry) -> Result<Ref, Raised> {
    match entry {
        Entry::Handle(handle) => Ok(handle.into_object()),
        Entry::Foreign(handle) => Ok(handle),
        Entry::Call { callback, argument, context } => {
            let argument = argument.as_ref().map(Ref::borrow);
            let parts =
                Parts { event_loop: core.loop_ref(), callback, arguments: argument.as_slice(), context };
            Handle::create(parts).map(HandleRef::into_object)
        }
        Entry::Native { object, run } => step_handle(core, object, run),
    }
}

/// The entry of a handle of any class.
pub(crate) fn from_handle(handle: Ref) -> Entry {
    match HandleRef::new(handle) {
        Ok(handle) => Entry::Handle(handle),
        Err(foreign) => Entry::Foreign(foreign),
    }
}

fn step_handle(core: &Core, object: Ref, run: NativeStep<Core>) -> Result<Ref, Raised> {
    let this = core.this();
    let py = this.py();
    let step = Step { object: Slot::new(Some(object)), run, event_loop: LoopSlot::new(core.loop_ref()) };
    let step = Bound::new(py, step)?;
    let callback = step.getattr(Fallible("run"))?;
    let context = copy_current_context()?;
    let parts = Parts { event_loop: core.loop_ref(), callback: callback.into(), arguments: &[], context };
    Handle::create(parts).map(HandleRef::into_object)
}

/// An [`Entry::Native`] as a Python callable.
#[pyclass(frozen)]
struct Step {
    object: Slot,
    run: NativeStep<Core>,
    event_loop: LoopSlot,
}

// SAFETY: used and dropped by attached threads only; the slots are emptied in a section of the object.
unsafe impl Send for Step {}
// SAFETY: as for `Send`.
unsafe impl Sync for Step {}

#[pymethods]
impl Step {
    /// The object that the function is called with, such as a transport. None once it was called.
    #[getter]
    fn subject<'py>(slf: &Bound<'py, Self>) -> Option<Bound<'py, PyAny>> {
        let _held = section::enter_bound(slf);
        slf.get().object.get().map(|object| object.bind(slf.py()))
    }

    fn run(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        let taken = {
            let _held = section::enter_bound(slf);
            (this.object.take(), this.event_loop.take())
        };
        let (Some(object), Some(event_loop)) = taken else { return Ok(()) };
        let run = || (this.run)(&object, event_loop.core());
        event_loop.object().hold(run).map_err(|Fatal| Raised.into())
    }
}
