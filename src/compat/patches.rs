//! Detects the patches by which tracers and profilers see every callback, and replaced classes of futures and tasks.
//!
//! Such tools patch `asyncio.Handle._run`, by another function on the class or by other code in the same function, and
//! expect every loop to call it. A loop checks when it is created and when it begins to run, but not for each callback.
//! So a patch that is made during a run takes effect in the next run.

use pyo3::prelude::*;

use super::function::Function;
use super::module_name::ModuleName;
use crate::capi::error::unless_raised;
use crate::capi::once::Once;
use crate::capi::{Raised, Ref};

#[derive(Debug)]
struct Functions {
    handle_run: Function,
    future_class: &'static ModuleName,
    task_class: &'static ModuleName,
}

static FUNCTIONS: Once<Functions> = Once::new();

/// Records the functions. Called once, by the module's initialisation.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    FUNCTIONS.set(Functions {
        handle_run: Function::in_class(py, "asyncio.events", "Handle", "_run")?,
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

/// Is `asyncio.Handle._run` patched? It counts as patched if its lookup fails.
pub(crate) fn handle_run_is_patched() -> bool {
    unless_raised(functions().handle_run.is_unpatched()) != Some(true)
}

/// The patch that replaces `asyncio.Handle._run`. The caller calls it with a native handle, which has the attributes of
/// an `asyncio.Handle`. The patch runs the callback itself, or calls asyncio's function.
pub(crate) fn handle_run() -> Result<Option<Ref>, Raised> {
    functions().handle_run.patch()
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
