//! What others have put in the place of functions of asyncio's that native code stands in for.
//!
//! Tracers and profilers patch `asyncio.Handle._run` and `BaseEventLoop.create_task`, by another function on the class
//! or by other code in the same function, and expect every loop to call them. A loop looks for that when it is made,
//! when it begins to run and when its class has changed; nothing is asked per callback.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::call::getattr;
use crate::capi::error::fetch;
use crate::capi::fallible::interned;
use crate::capi::pristine::Once;
use crate::capi::{Fallible, Raised, Ref};

/// A function of a class of asyncio's.
#[derive(Debug)]
struct Function {
    class: Ref,
    name: Ref,
    /// What it was at import, with its code; nothing if it was somebody else's already.
    known: Option<(Ref, Ref)>,
}

#[derive(Debug)]
struct Functions {
    handle_run: Function,
    create_task: Function,
}

static FUNCTIONS: Once<Functions> = Once::new();

/// Which of them are somebody else's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replaced {
    pub(crate) handle_run: bool,
    pub(crate) create_task: bool,
}

impl Function {
    fn learn(py: Python<'_>, module: &str, class: &str, name: &str) -> PyResult<Function> {
        let module = py.import(Fallible(module))?;
        let class = module.getattr(Fallible(class))?;
        let function = class.getattr(Fallible(name))?;
        let is_asyncios =
            function.getattr_opt(Fallible("__globals__"))?.is_some_and(|names| names.is(module.dict()));
        let known = match function.getattr_opt(Fallible("__code__"))? {
            Some(code) if is_asyncios => Some((function.into(), code.into())),
            _ => None,
        };
        Ok(Function { class: class.into(), name: interned(name).map_err(|Raised| fetch(py))?, known })
    }

    fn current(&self) -> Result<Ref, Raised> {
        getattr(self.class.as_ptr(), self.name.as_ptr())
    }

    /// The function, if it is not what it was.
    fn replacement(&self) -> Result<Option<Ref>, Raised> {
        let current = self.current()?;
        let same = self.known.as_ref().is_some_and(|(function, code)| {
            // SAFETY: what has a code object is a function; a borrowed reference.
            current.as_ptr() == function.as_ptr()
                && unsafe { ffi::PyFunction_GetCode(function.as_ptr()) } == code.as_ptr()
        });
        Ok((!same).then_some(current))
    }
}

/// Takes note of the functions as they are. Called once, by the module's initialisation.
pub(crate) fn learn(py: Python<'_>) -> PyResult<()> {
    FUNCTIONS.set(Functions {
        handle_run: Function::learn(py, "asyncio.events", "Handle", "_run")?,
        create_task: Function::learn(py, "asyncio.base_events", "BaseEventLoop", "create_task")?,
    });
    Ok(())
}

/// Looks for tools. What cannot be looked at counts as one.
pub(crate) fn look() -> Replaced {
    let is_replaced = |function: &Function| {
        function.replacement().map_or_else(
            |raised| {
                drop(raised.take());
                true
            },
            |found| found.is_some(),
        )
    };
    FUNCTIONS.get().map_or_else(Replaced::default, |functions| Replaced {
        handle_run: is_replaced(&functions.handle_run),
        create_task: is_replaced(&functions.create_task),
    })
}

/// Whoever took the place of `asyncio.Handle._run`. He is given a handle of ours and runs its callback, or has asyncio's
/// function do it: both find the attributes that a Handle has.
pub(super) fn handle_run() -> Result<Option<Ref>, Raised> {
    FUNCTIONS.get().map_or(Ok(None), |functions| functions.handle_run.replacement())
}

/// `BaseEventLoop.create_task`: asyncio's own, with its task factories, debug mode and keywords that only it knows, or
/// what somebody has put in its place. Not behind a function of ours: in debug mode a task says where it was created,
/// and asyncio takes one frame off for its own function.
pub(super) fn create_task() -> Result<Ref, Raised> {
    match FUNCTIONS.get() {
        Some(functions) => functions.create_task.current(),
        None => unreachable!("the functions are learnt before any loop is made"),
    }
}
