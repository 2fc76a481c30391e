//! Distinguishes the values that a package has defined from patches.

use std::sync::OnceLock;

use pyo3::ffi;

use crate::capi::fallible::interned;
use crate::capi::function::Function;
use crate::capi::imports::imports;
use crate::capi::shared::{code_of, dict_item};
use crate::capi::{Borrowed, Native, Raised, Ref};

/// The packages whose Python functions and classes count as originals. C functions, the descriptors of C classes and
/// modules always do.
const PACKAGES: [&str; 6] = ["asyncio", "concurrent", "selectors", "socket", "ssl", "wakeloop"];

/// asyncio's bound of a read, `max_size` of its transports and of its TLS protocol.
pub(crate) const MAX_SIZE: i64 = 256 * 1024;

/// A value that its package has defined.
#[derive(Debug)]
pub(super) struct Original {
    value: Ref,
    /// The code of a Python function, or of a property's getter.
    code: Option<Code>,
}

/// A Python function and its original code. Tracers that rewrite bytecode put another code object into the same
/// function.
#[derive(Debug)]
pub(super) struct Code {
    function: Ref,
    code: Ref,
}

impl Code {
    #[inline(always)]
    fn is_in_place(&self) -> bool {
        // SAFETY: `Original::of` has checked that it is a function.
        unsafe { code_of(self.function.as_ptr()) == self.code.as_ptr() }
    }

    /// Have all these functions their original code? They almost always do, so there is no branch for each.
    #[inline(always)]
    pub(super) fn are_in_place(codes: &[Code]) -> bool {
        codes.iter().fold(true, |all, code| all & code.is_in_place())
    }
}

impl Original {
    /// `value`, if one of the packages has defined it: a function, a property, a class, a module or `max_size`.
    pub(super) fn of(value: Ref) -> Result<Option<Original>, Raised> {
        // SAFETY: live objects. Each function of the C API is called after a check of the object's type; a borrowed
        // reference that it returns becomes an owned one before any Python code runs.
        unsafe {
            let object = value.as_ptr();
            let descriptors = [
                &raw mut ffi::PyMethodDescr_Type,
                &raw mut ffi::PyWrapperDescr_Type,
                &raw mut ffi::PyMemberDescr_Type,
                &raw mut ffi::PyGetSetDescr_Type,
            ];
            if ffi::PyCFunction_Check(object) != 0
                || descriptors.contains(&ffi::Py_TYPE(object))
                || Function::class().is_exact_class_of(&value)
                || ffi::PyModule_CheckExact(object) != 0
            {
                return Ok(Some(Original { value, code: None }));
            }
            if value.is_exact_int() {
                let is_asyncios = value.saturating_int() == Some(MAX_SIZE);
                return Ok(is_asyncios.then_some(Original { value, code: None }));
            }
            if ffi::PyType_Check(object) != 0 {
                let home = value.getattr(&interned("__module__")?)?;
                return Ok(is_ours_or_pythons(&home).then_some(Original { value, code: None }));
            }
            let function = if ffi::PyObject_TypeCheck(object, &raw mut ffi::PyProperty_Type) != 0 {
                value.getattr(&interned("fget")?)?
            } else {
                value.clone_ref()
            };
            if ffi::PyFunction_Check(function.as_ptr()) == 0 {
                return Ok(None);
            }
            // `__module__` would be wrong: functools.wraps copies it.
            let globals = ffi::PyFunction_GetGlobals(function.as_ptr());
            let Some(home) = dict_item(globals, &imports().__name__) else { return Ok(None) };
            let code = Borrowed::from_ptr(code_of(function.as_ptr())).to_owned();
            let code = Some(Code { function, code });
            Ok(is_ours_or_pythons(&home).then_some(Original { value, code }))
        }
    }

    /// Is `found` the original that is recorded here? The first value that one of the packages has defined is recorded.
    #[inline(always)]
    pub(super) fn is_in(place: &OnceLock<Original>, found: &Ref) -> Result<bool, Raised> {
        match place.get() {
            Some(original) => Ok(original.is(found)),
            None => Original::record(place, found),
        }
    }

    #[cold]
    fn record(place: &OnceLock<Original>, found: &Ref) -> Result<bool, Raised> {
        let Some(original) = Original::of(found.clone_ref())? else { return Ok(false) };
        let _ = place.set(original);
        Ok(true)
    }

    pub(super) fn is_property(&self) -> bool {
        // SAFETY: a live object.
        unsafe { ffi::PyObject_TypeCheck(self.value.as_ptr(), &raw mut ffi::PyProperty_Type) != 0 }
    }

    /// Is `found` this value, with its original code?
    #[inline(always)]
    pub(super) fn is(&self, found: &Ref) -> bool {
        found.is(&self.value) && self.has_code()
    }

    /// Is `found` this value? Does not compare its code.
    #[inline(always)]
    pub(super) fn is_value(&self, found: &Ref) -> bool {
        found.is(&self.value)
    }

    /// The Python function of this value, with its original code.
    pub(super) fn code(&self) -> Option<Code> {
        let Code { function, code } = self.code.as_ref()?;
        Some(Code { function: function.clone_ref(), code: code.clone_ref() })
    }

    #[inline(always)]
    pub(super) fn has_code(&self) -> bool {
        self.code.as_ref().is_none_or(Code::is_in_place)
    }
}

/// Is the module of this name part of one of the packages?
fn is_ours_or_pythons(module: &Ref) -> bool {
    module.text().and_then(|name| name.split('.').next()).is_some_and(|package| PACKAGES.contains(&package))
}
