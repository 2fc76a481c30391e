//! Detects the patches by which tracers and profilers see every callback and every task.
//!
//! Such tools patch `asyncio.Handle._run` and `BaseEventLoop.create_task`, by another function on the class or by other
//! code in the same function, and expect every loop to call them. A loop checks when it is created and when it begins
//! to run, but not for each callback. So a patch that is made during a run takes effect in the next run.

use pyo3::prelude::*;

use super::function::Function;
use super::module_name::ModuleName;
use crate::capi::error::unless_raised;
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

/// Records the functions. Called once, by the module's initialisation.
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
        None => unreachable!("the functions are recorded before any loop is created"),
    }
}

/// Finds out which functions are patched. A function whose lookup fails counts as patched.
pub(crate) fn look() -> Patches {
    let is_patched = |function: &Function| unless_raised(function.is_unpatched()) != Some(true);
    let functions = functions();
    Patches { handle_run: is_patched(&functions.handle_run), create_task: is_patched(&functions.create_task) }
}

/// The patch that replaces `asyncio.Handle._run`. The caller calls it with a native handle, which has the attributes of
/// an `asyncio.Handle`. The patch runs the callback itself, or calls asyncio's function.
pub(crate) fn handle_run() -> Result<Option<Ref>, Raised> {
    functions().handle_run.patch()
}

/// `BaseEventLoop.create_task`: asyncio's own function, or the patch that replaces it. asyncio's function handles task
/// factories, debug mode and all keywords. The caller must not put another Python function in between: in debug mode
/// asyncio removes the innermost frame from the traceback of the task's creation, and expects it to be its own.
pub(crate) fn create_task() -> Result<Ref, Raised> {
    functions().create_task.current()
}

/// The class of asyncio's futures, which nest_asyncio and tests replace.
#[inline(always)]
pub(crate) fn future_class() -> Result<Ref, Raised> {
    functions().future_class.get()
}

/// The class of asyncio's tasks, which nest_asyncio and tests replace.
#[inline(always)]
pub(crate) fn task_class() -> Result<Ref, Raised> {
    functions().task_class.get()
}
