//! asyncio's own future, without looking up what everybody knows it has.
//!
//! Nobody can change its class, so what a lookup finds there is asked for once, at import. Futures of any other class
//! are asked by name, each time.

use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;

use super::call::{method, vectorcall};
use super::error::{Raised, raise, take_exception};
use super::fallible::Fallible;
use super::imports::imports;
use super::object::Ref;

/// The class, and what it has.
#[derive(Debug)]
struct FutureClass {
    kind: Ref,
    set_result: Ref,
    result: Ref,
    done: Ref,
    blocking: Ref,
    /// It is C's and cannot be changed.
    fixed: bool,
}

/// `Py_TPFLAGS_IMMUTABLETYPE`; a type that is not on the heap cannot be changed either.
const IMMUTABLE: std::ffi::c_ulong = 1 << 8;

impl FutureClass {
    fn load(class: &Bound<'_, PyAny>) -> PyResult<FutureClass> {
        let found = |name| class.getattr(Fallible(name)).map(Ref::from);
        // SAFETY: the class is a type, or has no flags that are looked at.
        let flags =
            class.cast::<pyo3::types::PyType>().map_or(0, |kind| unsafe { (*kind.as_type_ptr()).tp_flags });
        Ok(FutureClass {
            set_result: found("set_result")?,
            result: found("result")?,
            done: found("done")?,
            blocking: found("_asyncio_future_blocking")?,
            fixed: flags & IMMUTABLE != 0 || (flags != 0 && flags & ffi::Py_TPFLAGS_HEAPTYPE == 0),
            kind: class.clone().into(),
        })
    }

    /// Is `future` of this very class, which is what it was?
    #[inline(always)]
    fn is_class_of(&self, future: &Ref) -> bool {
        // SAFETY: a live object.
        self.fixed && unsafe { ffi::Py_TYPE(future.as_ptr()).cast() } == self.kind.as_ptr()
    }
}

struct Shared(FutureClass);

// SAFETY: immutable after import, never dropped, and used on attached threads only, as every `Ref`.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

static CLASS: OnceLock<Shared> = OnceLock::new();

/// Looks the class up. Called once, by the module's initialisation.
pub(crate) fn load(py: Python<'_>) -> PyResult<()> {
    let class = FutureClass::load(&py.import(Fallible("asyncio"))?.getattr(Fallible("Future"))?)?;
    let _ = CLASS.set(Shared(class));
    Ok(())
}

/// asyncio's class, if `future` is an instance of it and not of a subclass.
#[inline(always)]
fn class_of(future: &Ref) -> Option<&'static FutureClass> {
    CLASS.get().map(|shared| &shared.0).filter(|class| class.is_class_of(future))
}

/// Is `future` an instance of asyncio's own class, which nobody can change?
#[inline(always)]
pub(crate) fn is_asyncios(future: &Ref) -> bool {
    class_of(future).is_some()
}

/// `future.set_result(value)`.
#[inline(always)]
pub(crate) fn set_result(future: &Ref, value: &Ref) -> Result<(), Raised> {
    let Some(class) = class_of(future) else {
        return method(future, imports().set_result.as_ptr(), &[value.as_ptr()]).map(drop);
    };
    let mut stack = [std::ptr::null_mut(), future.as_ptr(), value.as_ptr()];
    // SAFETY: two live objects behind the spare slot.
    unsafe { vectorcall(class.set_result.as_ptr(), stack.as_mut_ptr().add(1), 2) }.map(drop)
}

/// `if not future.done(): future.set_result(value)`.
#[inline(always)]
pub(crate) fn complete(future: &Ref, value: &Ref) -> Result<(), Raised> {
    if class_of(future).is_some() {
        // It says so by itself.
        return set_result(future, value).or_else(|Raised| unless_done(future));
    }
    if is_done(future)? { Ok(()) } else { set_result(future, value) }
}

/// The error of a `set_result`, unless the future was done.
#[cold]
fn unless_done(future: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    if is_done(future)? {
        return Ok(());
    }
    raise(error);
    Err(Raised)
}

/// `future.result()`.
#[inline(always)]
pub(crate) fn result(future: &Ref) -> Result<Ref, Raised> {
    match class_of(future) {
        Some(class) => asked(&class.result, future),
        None => method(future, imports().result.as_ptr(), &[]),
    }
}

/// `future.done()`; what is not `True` counts as false.
#[inline(always)]
pub(crate) fn is_done(future: &Ref) -> Result<bool, Raised> {
    let done = match class_of(future) {
        Some(class) => asked(&class.done, future)?,
        None => method(future, imports().done.as_ptr(), &[])?,
    };
    // SAFETY: comparing with the address of a static.
    Ok(done.as_ptr() == unsafe { ffi::Py_True() })
}

/// Calls a method of the class that takes no arguments.
#[inline(always)]
fn asked(function: &Ref, future: &Ref) -> Result<Ref, Raised> {
    let mut stack = [std::ptr::null_mut(), future.as_ptr()];
    // SAFETY: a live object behind the spare slot.
    unsafe { vectorcall(function.as_ptr(), stack.as_mut_ptr().add(1), 1) }
}

/// Marks the future as a task expects it from an `await`.
#[inline(always)]
pub(crate) fn set_blocking(future: &Ref) -> Result<(), Raised> {
    // SAFETY: live objects; an attribute that is set by a descriptor is set by its `tp_descr_set`. The attribute exists
    // on every asyncio future. -1 with an error set means failure.
    let done = unsafe {
        let descriptor = class_of(future).map(|class| &class.blocking);
        match descriptor.and_then(|it| Some((it, (*ffi::Py_TYPE(it.as_ptr())).tp_descr_set?))) {
            Some((descriptor, set)) => set(descriptor.as_ptr(), future.as_ptr(), ffi::Py_True()),
            None => {
                let name = imports()._asyncio_future_blocking.as_ptr();
                ffi::PyObject_SetAttr(future.as_ptr(), name, ffi::Py_True())
            }
        }
    };
    if done < 0 { Err(Raised) } else { Ok(()) }
}
