//! What a package has defined under a name, told from what somebody else has put there.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::call::getattr;
use crate::capi::fallible::interned;
use crate::capi::{Raised, Ref};

/// The packages whose functions, classes and modules count as originals. Functions of C count wherever they are.
const PACKAGES: [&str; 4] = ["asyncio", "concurrent", "socket", "wakeloop"];

/// A value as its package has defined it.
#[derive(Debug)]
pub(super) struct Original {
    value: Ref,
    /// The Python function in it, with its code: tracers that rewrite bytecode leave the function in place.
    code: Option<(Ref, Ref)>,
}

impl Original {
    /// `value`, if one of the packages has defined it: a function, a property, a class or a module.
    pub(super) fn of(value: Ref) -> Result<Option<Original>, Raised> {
        // SAFETY: live objects; each function is called on the type that it is for, and gives a borrowed reference.
        unsafe {
            let object = value.as_ptr();
            if ffi::PyCFunction_Check(object) != 0
                || ffi::Py_TYPE(object) == &raw mut ffi::PyMethodDescr_Type
                || ffi::Py_TYPE(object) == &raw mut ffi::PyWrapperDescr_Type
                || ffi::PyModule_CheckExact(object) != 0
            {
                return Ok(Some(Original { value, code: None }));
            }
            if ffi::PyType_Check(object) != 0 {
                let home = getattr(object, interned("__module__")?.as_ptr())?;
                return Ok(is_ours_or_pythons(&home)?.then_some(Original { value, code: None }));
            }
            let function = if ffi::PyObject_TypeCheck(object, &raw mut ffi::PyProperty_Type) != 0 {
                getattr(object, interned("fget")?.as_ptr())?
            } else {
                value.clone_ref()
            };
            if ffi::PyFunction_Check(function.as_ptr()) == 0 {
                return Ok(None);
            }
            // Not `__module__`, which functools.wraps copies.
            let globals = ffi::PyFunction_GetGlobals(function.as_ptr());
            let home = ffi::PyDict_GetItemWithError(globals, interned("__name__")?.as_ptr());
            let Some(home) = Ref::from_nullable(home) else { return Ok(None) };
            let code = Ref::from_borrowed(ffi::PyFunction_GetCode(function.as_ptr()));
            Ok(is_ours_or_pythons(&home)?.then_some(Original { value, code: Some((function, code)) }))
        }
    }

    pub(super) fn is_property(&self) -> bool {
        // SAFETY: a live object.
        unsafe { ffi::PyObject_TypeCheck(self.value.as_ptr(), &raw mut ffi::PyProperty_Type) != 0 }
    }

    /// Is this the very value, with the code that it had?
    #[inline(always)]
    pub(super) fn is(&self, found: *mut ffi::PyObject) -> bool {
        found == self.value.as_ptr() && self.has_code()
    }

    /// Is this the very value, whatever its code?
    #[inline(always)]
    pub(super) fn is_value(&self, found: *mut ffi::PyObject) -> bool {
        found == self.value.as_ptr()
    }

    /// The Python function in it, with its code.
    pub(super) fn code(&self) -> Option<(Ref, Ref)> {
        self.code.as_ref().map(|(function, code)| (function.clone_ref(), code.clone_ref()))
    }

    #[inline(always)]
    pub(super) fn has_code(&self) -> bool {
        self.code.as_ref().is_none_or(|(function, code)| {
            // SAFETY: `of` has seen that it is a function; a borrowed reference.
            unsafe { ffi::PyFunction_GetCode(function.as_ptr()) == code.as_ptr() }
        })
    }
}

/// Is the module of this name part of one of the packages?
fn is_ours_or_pythons(module: &Ref) -> Result<bool, Raised> {
    // SAFETY: every caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    let Ok(name) = module.bind(py).cast_into::<pyo3::types::PyString>() else { return Ok(false) };
    let name = name.to_cow().map_err(|error| crate::capi::error::restore(py, error))?;
    Ok(name.split('.').next().is_some_and(|package| PACKAGES.contains(&package)))
}
