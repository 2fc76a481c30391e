//! Names the callbacks and tasks of a recording.
//!
//! This runs for each callback, so it looks at fields only: no Python code runs, and no object is kept or changed. The
//! key of a name is made of the hashes of the strings that it consists of.

use std::ffi::CStr;

use super::super::handle::layout::Handle;
use crate::capi::callable::c_hash;
use crate::capi::shared::found;
use crate::capi::{Borrowed, Ref};
use crate::compat::task_fields::{
    coroutine_name, function_of_partial, is_task, name_and_coroutine, task_of_step,
};
use crate::recorder::names::{Name, Names, mix};

/// How many `functools.partial` are looked into to find a function.
const PARTIALS: usize = 8;

/// The number of the name of a callable, or of a handle's callback; `None` for a handle that was cancelled.
#[inline(always)]
pub(in crate::kernel) fn of_subject(names: &Names, subject: &Ref) -> Option<u64> {
    match Handle::from_object(subject) {
        Some(handle) => handle.borrowed_callback().map(|callback| of_callable(names, &found(callback))),
        None => Some(of_callable(names, subject)),
    }
}

/// The number of the name of a callable.
#[inline(always)]
pub(crate) fn of_callable(names: &Names, callable: &Ref) -> u64 {
    match callable.function_hash() {
        Some(key) => names.number(key, || function_name(callable)),
        None => of_other(names, callable, PARTIALS),
    }
}

fn of_other(names: &Names, callable: &Ref, partials: usize) -> u64 {
    if let Some(task) = task_of_step(callable) {
        // SAFETY: the task of a step.
        return unsafe { of_task(names, &task) };
    }
    if let Some(function) = callable.method_function() {
        return match function.function_hash() {
            Some(key) => names.number(key, || function_name(&function)),
            None => of_type(names, &function),
        };
    }
    if let Some((name, owner)) = callable.builtin_names() {
        return match owner {
            // SAFETY: a task.
            Some(task) if name == c"task_wakeup" && is_task(&task) => unsafe { of_task(names, &task) },
            _ => of_builtin(names, name, owner),
        };
    }
    match function_of_partial(callable) {
        Some(function) if partials > 0 => match function.function_hash() {
            Some(key) => names.number(key, || function_name(&function)),
            None => of_other(names, &function, partials - 1),
        },
        _ => of_type(names, callable),
    }
}

#[cold]
fn function_name(function: &Ref) -> Name {
    let Some((qualname, module)) = function.function_names() else { return Name::default() };
    Name {
        text: text(&qualname),
        category: "callback",
        details: module.escaped_text().map(|module| ("module", module)).into_iter().collect(),
    }
}

fn of_builtin(names: &Names, name: &CStr, owner: Option<Borrowed<'_>>) -> u64 {
    // The owner of a module's function is the module.
    let class = owner.as_ref().map_or(c"", |owner| owner.type_name());
    names.number(mix(c_hash(name), c_hash(class)), || Name {
        text: [class, name].map(|part| part.to_string_lossy().into_owned()).join("."),
        category: "callback",
        details: Vec::new(),
    })
}

/// An object of which only the type is known.
#[inline(never)]
fn of_type(names: &Names, object: &Ref) -> u64 {
    let class = object.type_name();
    names.number(mix(c_hash(class), 3), || Name {
        text: format!("<{}>", class.to_string_lossy()),
        category: "callback",
        details: Vec::new(),
    })
}

/// # Safety
/// As [`name_and_coroutine`].
#[inline(always)]
unsafe fn of_task(names: &Names, task: &Ref) -> u64 {
    // SAFETY: the caller's promise.
    let Some((name, coroutine)) = (unsafe { name_and_coroutine(task) }) else { return of_type(names, task) };
    let qualname = coroutine_name(&coroutine);
    // A task has a number until its name is asked for.
    let own = name.text_hash().or_else(|| Some(!(name.exact_int()? as u64))).unwrap_or(4);
    let of_coroutine =
        qualname.as_ref().and_then(|it| it.text_hash()).unwrap_or_else(|| c_hash(coroutine.type_name()));
    names.number(mix(mix(own, 5), of_coroutine), || {
        let number = || name.exact_int().map_or("Task".to_owned(), |number| format!("Task-{number}"));
        let name = name.escaped_text().unwrap_or_else(number);
        let coroutine = match qualname {
            Some(qualname) => text(&qualname),
            None => format!("<{}>", coroutine.type_name().to_string_lossy()),
        };
        Name {
            text: format!("{name}: {coroutine}"),
            category: "task",
            details: vec![("task", name), ("coroutine", coroutine)],
        }
    })
}

fn text(name: &Ref) -> String {
    name.escaped_text().unwrap_or_else(|| "?".to_owned())
}
