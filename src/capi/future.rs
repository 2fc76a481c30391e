//! Calls the methods of asyncio's own future class without a lookup per call.
//!
//! The class is immutable, so its methods are looked up once, at import. For futures of any other class they are
//! looked up by name at each call.

use pyo3::prelude::*;
use pyo3::types::PyType;

use super::error::{Raised, raise, take_exception};
use super::exceptions::Exception;
use super::fallible::Fallible;
use super::imports::{defined_class, imports};
use super::inspect::{boolean, is_immutable};
use super::object::Ref;
use super::once::Once;

/// The class and its methods.
#[derive(Debug)]
struct FutureClass {
    kind: Ref,
    set_result: Ref,
    result: Ref,
    done: Ref,
    blocking: Ref,
}

/// Empty if the class can be changed: then it is not the one that is written in C.
static CLASS: Once<FutureClass> = Once::new();

/// Looks the class up. Called once, by the module's initialisation.
pub(crate) fn load(py: Python<'_>) -> PyResult<()> {
    let class = defined_class(py, "_asyncio", "Future")?;
    let found = |name| class.getattr(Fallible(name)).map(Ref::from);
    let loaded = FutureClass {
        set_result: found("set_result")?,
        result: found("result")?,
        done: found("done")?,
        blocking: found("_asyncio_future_blocking")?,
        kind: class.clone().into(),
    };
    if let Ok(kind) = class.cast::<PyType>() {
        // SAFETY: a live type.
        if unsafe { is_immutable(kind.as_type_ptr()) } {
            CLASS.set(loaded);
        }
    }
    Ok(())
}

/// asyncio's class, if `future` is an instance of it and not of a subclass.
#[inline(always)]
fn class_of(future: &Ref) -> Option<&'static FutureClass> {
    let class = CLASS.get()?;
    if future.is_exactly(&class.kind) { Some(class) } else { None }
}

/// Is `future` an instance of asyncio's own class, and is that class immutable?
#[inline(always)]
pub(crate) fn is_asyncios(future: &Ref) -> bool {
    class_of(future).is_some()
}

/// `future.set_result(value)`.
#[inline(always)]
pub(crate) fn set_result(future: &Ref, value: &Ref) -> Result<(), Raised> {
    match class_of(future) {
        Some(class) => class.set_result.call_with([future.borrow(), value.borrow()]),
        None => future.call_method(&imports().set_result, &[value.borrow()]),
    }
    .map(drop)
}

/// `if not future.done(): future.set_result(value)`.
#[inline(always)]
pub(crate) fn complete(future: &Ref, value: &Ref) -> Result<(), Raised> {
    if class_of(future).is_some() {
        // `set_result` itself raises InvalidStateError if the future is done.
        return set_result(future, value).or_else(|Raised| unless_done(future));
    }
    if is_done(future)? { Ok(()) } else { set_result(future, value) }
}

/// The result of a `set_result` that failed: its error, unless the future was done. On Python 3.11 a future may have no
/// memory to schedule its callbacks. It is done then, and has lost them.
#[cold]
fn unless_done(future: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    if !Exception::MemoryError.matches(&error) && is_done(future)? {
        return Ok(());
    }
    Err(raise(error))
}

/// `future.result()`.
#[inline(always)]
pub(crate) fn result(future: &Ref) -> Result<Ref, Raised> {
    match class_of(future) {
        Some(class) => class.result.call_with([future.borrow()]),
        None => future.call_method(&imports().result, &[]),
    }
}

/// `future.done()`. Any result but `True` counts as false.
#[inline(always)]
pub(crate) fn is_done(future: &Ref) -> Result<bool, Raised> {
    let done = match class_of(future) {
        Some(class) => class.done.call_with([future.borrow()])?,
        None => future.call_method(&imports().done, &[])?,
    };
    Ok(done.is(&boolean(true)))
}

/// Sets `_asyncio_future_blocking`, by which a task knows that the future was awaited.
#[inline(always)]
pub(crate) fn set_blocking(future: &Ref) -> Result<(), Raised> {
    let yes = boolean(true);
    match class_of(future) {
        Some(class) => class.blocking.set_through(future, &yes),
        None => future.setattr(&imports()._asyncio_future_blocking, &yes),
    }
}
