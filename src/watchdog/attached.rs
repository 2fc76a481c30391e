//! Reads a stack, and the names of thread and task, with the GIL.
//!
//! Nothing here runs Python code, unless a program has put Python code in the place of asyncio's or threading's own.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::stack::{DEEPEST, Frame, Stack};
use crate::capi::{Fallible, Ref};

/// The stack of a thread.
///
/// # Safety
/// The thread state lives. It belongs to this thread, or to one that waits for the GIL.
pub(super) unsafe fn stack(py: Python<'_>, thread: *mut ffi::PyThreadState) -> Stack {
    let mut stack = Stack::new();
    // SAFETY: the caller's promise; the GIL is held.
    let mut next = unsafe { Ref::from_owned(ffi::PyThreadState_GetFrame(thread).cast()) };
    while let Some(frame) = next.filter(|_| stack.len() < DEEPEST) {
        let pointer = frame.as_ptr().cast();
        // SAFETY: a live frame. Each call gives a number, or an owned reference, which is null without a caller.
        let (code, line, back) = unsafe {
            (
                Ref::from_owned(ffi::PyFrame_GetCode(pointer).cast()),
                ffi::PyFrame_GetLineNumber(pointer),
                Ref::from_owned(ffi::PyFrame_GetBack(pointer).cast()),
            )
        };
        let name = |name| text(&code.as_ref()?.bind(py).getattr(Fallible(name)).ok()?);
        stack.push(Frame {
            file: name("co_filename").unwrap_or_default(),
            line: (line > 0).then_some(line),
            function: name("co_qualname").unwrap_or_default(),
        });
        next = back;
    }
    stack
}

/// The name of a thread of the `threading` module.
pub(super) fn thread_name(py: Python<'_>, ident: u64) -> Option<String> {
    let threads = module(py, "threading")?.getattr(Fallible("_active")).ok()?;
    let thread = threads.cast::<PyDict>().ok()?.get_item(Fallible(ident)).ok()??;
    text(&thread.getattr(Fallible("_name")).ok()?)
}

/// The name of the task that a loop runs.
pub(super) fn task_name(event_loop: &Bound<'_, PyAny>) -> Option<String> {
    let py = event_loop.py();
    let tasks = module(py, "asyncio.tasks")?;
    // On 3.11 `current_task` is a Python function.
    #[cfg(not(Py_3_12))]
    let task = tasks
        .getattr(Fallible("_current_tasks"))
        .ok()?
        .cast::<PyDict>()
        .ok()?
        .get_item(event_loop)
        .ok()??;
    #[cfg(Py_3_12)]
    let task = tasks.getattr(Fallible("current_task")).ok()?.call1((event_loop,)).ok()?;
    if task.is_none() {
        return None;
    }
    // The native class has a method alone, and asyncio's class in Python an attribute. A subclass may override both.
    let native = module(py, "_asyncio")?.getattr(Fallible("Task")).ok()?;
    if task.is_instance(&native).ok()? {
        text(&native.getattr(Fallible("get_name")).ok()?.call1((task,)).ok()?)
    } else {
        text(&task.getattr(Fallible("_name")).ok()?)
    }
}

/// Does the interpreter still have this thread state?
pub(super) fn is_alive(_attached: Python<'_>, thread: usize) -> bool {
    // SAFETY: this thread is attached. Other threads may enter the list at its head without it, and leave it with it.
    unsafe {
        let mut next = ffi::PyInterpreterState_ThreadHead(ffi::PyInterpreterState_Get());
        while !next.is_null() && next.addr() != thread {
            next = ffi::PyThreadState_Next(next);
        }
        !next.is_null()
    }
}

/// A module that the program has imported.
fn module<'py>(py: Python<'py>, name: &str) -> Option<Bound<'py, PyAny>> {
    let name = Fallible(name).into_pyobject(py).ok()?;
    // SAFETY: this thread is attached; an owned reference, or null with or without an error.
    let module = unsafe { Ref::from_owned(ffi::PyImport_GetModule(name.as_ptr())) };
    if module.is_none() {
        PyErr::take(py);
    }
    Some(module?.bind(py).clone())
}

/// The value of a `str`. Lone surrogates are escaped.
fn text(value: &Bound<'_, PyAny>) -> Option<String> {
    // SAFETY: a live object, of which the function checks that it is a `str`; an owned reference or null with an error.
    let bytes = unsafe {
        Bound::from_owned_ptr_or_err(
            value.py(),
            ffi::PyUnicode_AsEncodedString(value.as_ptr(), c"utf-8".as_ptr(), c"backslashreplace".as_ptr()),
        )
    };
    String::from_utf8(bytes.ok()?.extract().ok()?).ok()
}
