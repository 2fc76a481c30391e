//! The functions of asyncio that tracers and profilers patch to see every callback and every task.
//!
//! They patch `asyncio.Handle._run` and `BaseEventLoop.create_task`, by another function on the class or by other code
//! in the same function, and expect every loop to call them. A loop asks when it is made, when it begins to run and when
//! its class has changed. Nothing is asked per callback.

use pyo3::prelude::*;

use super::function::Function;
use super::module_name::ModuleName;
use crate::capi::once::Once;
use crate::capi::{Raised, Ref};

#[derive(Debug)]
struct Functions {
    handle_run: Function,
    create_task: Function,
    future_class: &'static ModuleName,
    task_class: &'static ModuleName,
}

static FUNCTIONS: Once<Functions> = Once::new();

/// Which of the functions are patched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patches {
    pub(crate) handle_run: bool,
    pub(crate) create_task: bool,
}

/// Notes the functions as they are. Called once, by the module's initialisation.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    FUNCTIONS.set(Functions {
        handle_run: Function::in_class(py, "asyncio.events", "Handle", "_run")?,
        create_task: Function::in_class(py, "asyncio.base_events", "BaseEventLoop", "create_task")?,
        future_class: ModuleName::watch(py, "asyncio.futures", "Future")?,
        task_class: ModuleName::watch(py, "asyncio.tasks", "Task")?,
    });
    Ok(())
}

fn functions() -> &'static Functions {
    match FUNCTIONS.get() {
        Some(functions) => functions,
        None => unreachable!("the functions are noted before any loop is made"),
    }
}

/// Looks for patches. A function that cannot be looked at counts as patched.
pub(crate) fn look() -> Patches {
    let is_patched = |function: &Function| {
        !function.is_unpatched().unwrap_or_else(|raised| {
            drop(raised.take());
            false
        })
    };
    let functions = functions();
    Patches { handle_run: is_patched(&functions.handle_run), create_task: is_patched(&functions.create_task) }
}

/// The patch in the place of `asyncio.Handle._run`. It is called with a handle of ours, which has the attributes of an
/// `asyncio.Handle`, and runs the callback itself or has asyncio's function do so.
pub(crate) fn handle_run() -> Result<Option<Ref>, Raised> {
    functions().handle_run.patch()
}

/// `BaseEventLoop.create_task`: asyncio's own function, with its task factories, debug mode and keywords that only
/// asyncio knows, or the patch in its place. The caller calls it directly: in debug mode asyncio takes the frame of its
/// own function off the stack that a task shows as its source, and would take another function's instead.
pub(crate) fn create_task() -> Result<Ref, Raised> {
    functions().create_task.current()
}

/// The class that asyncio makes futures of, which nest_asyncio and tests replace.
#[inline(always)]
pub(crate) fn future_class() -> Result<Ref, Raised> {
    functions().future_class.get()
}

/// The class that asyncio makes tasks of, which nest_asyncio and tests replace.
#[inline(always)]
pub(crate) fn task_class() -> Result<Ref, Raised> {
    functions().task_class.get()
}
