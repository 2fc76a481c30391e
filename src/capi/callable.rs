//! What callables are called, read from the fields of their objects: no Python code runs, and nothing is allocated.

use std::ffi::CStr;
use std::sync::atomic::{AtomicIsize, Ordering};

use pyo3::ffi;

use super::object::{Borrowed, Ref};
use super::shared::{Found, found};

unsafe extern "C" {
    /// Public in C, and not in pyo3.
    static mut PyMethod_Type: ffi::PyTypeObject;
    fn PyMethod_Function(method: *mut ffi::PyObject) -> *mut ffi::PyObject;
}

/// The longest name in characters.
const LONGEST: usize = 200;

impl Ref {
    /// A hash of the content of [`Ref::function_names`]. Needs some twenty instructions.
    #[inline(always)]
    pub(crate) fn function_hash(&self) -> Option<u64> {
        // SAFETY: a live object, whose fields are read only if it is a function. CPython lets `__qualname__` be a string
        // only, `__module__` any object or null. It replaces the first while no other thread runs, and the second in a
        // section of the function.
        unsafe {
            if ffi::PyFunction_Check(self.as_ptr()) == 0 {
                return None;
            }
            let function = self.as_ptr().cast::<ffi::PyFunctionObject>();
            Some(self.hold(|| {
                let module = Borrowed::from_nullable((*function).func_module);
                let of_module = module.and_then(|module| module.text_hash()).unwrap_or_default();
                hash_of((*function).func_qualname).rotate_left(1) ^ of_module
            }))
        }
    }

    /// The `__qualname__` and the `__module__` of an instance of exactly `function`.
    #[cold]
    pub(crate) fn function_names(&self) -> Option<(Found<'_>, Found<'_>)> {
        // SAFETY: a live object, whose fields are read only if it is a function. Its name and its module are objects
        // for as long as it lives, or null. Only other code that runs could replace them, as above.
        unsafe {
            if ffi::PyFunction_Check(self.as_ptr()) == 0 {
                return None;
            }
            let function = self.as_ptr().cast::<ffi::PyFunctionObject>();
            self.hold(|| {
                let module = Borrowed::from_nullable((*function).func_module).unwrap_or(Borrowed::none());
                Some((found(Borrowed::from_nullable((*function).func_qualname)?), found(module)))
            })
        }
    }

    /// The function of an instance of exactly `method`.
    #[inline(always)]
    pub(crate) fn method_function(&self) -> Option<Borrowed<'_>> {
        // SAFETY: a live object, which is read only if it is a method. Its function never changes.
        unsafe {
            if self.kind() != &raw mut PyMethod_Type {
                return None;
            }
            Borrowed::from_nullable(PyMethod_Function(self.as_ptr()))
        }
    }

    /// The name of a built-in function or method, and the object that it is bound to.
    #[inline(always)]
    pub(crate) fn builtin_names(&self) -> Option<(&CStr, Option<Borrowed<'_>>)> {
        // SAFETY: a live object, whose fields are read only if it is a built-in function. Its definition and that one's
        // name live as long as it, and its fields never change.
        unsafe {
            if ffi::PyCFunction_Check(self.as_ptr()) == 0 {
                return None;
            }
            let function = self.as_ptr().cast::<ffi::PyCFunctionObject>();
            Some((CStr::from_ptr((*(*function).m_ml).ml_name), Borrowed::from_nullable((*function).m_self)))
        }
    }

    /// The name of its type, as C code has given it.
    #[inline(always)]
    pub(crate) fn type_name(&self) -> &CStr {
        // SAFETY: the type of a live object has a name, which lives as long as the type.
        unsafe { CStr::from_ptr((*self.kind()).tp_name) }
    }

    /// The hash of the content of a string, which may be of a subclass; `None` for anything else. Does not call a
    /// `__hash__` of the subclass.
    #[inline(always)]
    pub(crate) fn text_hash(&self) -> Option<u64> {
        // SAFETY: a live object, which is read only if it is a string.
        unsafe { (ffi::PyUnicode_Check(self.as_ptr()) != 0).then(|| hash_of(self.as_ptr())) }
    }

    /// The content of a string, shortened if it is very long. What UTF-8 cannot express is escaped. `None` if it is no
    /// string, or if memory has run out.
    #[cold]
    pub(crate) fn escaped_text(&self) -> Option<String> {
        // SAFETY: a live object, which is read only if it is a string; an owned bytes object or null with an error.
        let encoded = unsafe {
            if ffi::PyUnicode_Check(self.as_ptr()) == 0 {
                return None;
            }
            // Not `Ref::text`, which would keep the UTF-8 form in the string: `sys.getsizeof` shows that.
            let (encoding, errors) = (c"utf-8".as_ptr(), c"backslashreplace".as_ptr());
            Ref::from_owned(ffi::PyUnicode_AsEncodedString(self.as_ptr(), encoding, errors))
        };
        let Some(encoded) = encoded else {
            super::inspect::clear_error();
            return None;
        };
        let text = String::from_utf8_lossy(encoded.bytes()?);
        let mut short: String = text.chars().take(LONGEST).collect();
        if short.len() < text.len() {
            short.push('…');
        }
        Some(short)
    }
}

/// # Safety
/// A live string, which may be of a subclass.
#[inline(always)]
unsafe fn hash_of(text: *mut ffi::PyObject) -> u64 {
    // SAFETY: the caller's promise. A hash of -1 was not computed yet; then the function of `str` does that. The
    // interpreter uses the field as an atomic, too.
    unsafe {
        let place = &raw mut (*text.cast::<ffi::PyASCIIObject>()).hash;
        // Relaxed: it stands for itself.
        let known = AtomicIsize::from_ptr(place).load(Ordering::Relaxed);
        if known == -1 { compute_hash(text) } else { known as u64 }
    }
}

/// # Safety
/// As [`hash_of`].
#[cold]
unsafe fn compute_hash(text: *mut ffi::PyObject) -> u64 {
    // SAFETY: the caller's promise. The function of `str` does not fail.
    unsafe { ffi::PyUnicode_Type.tp_hash.map_or(0, |hash| hash(text) as u64) }
}

/// A hash of a C string.
#[inline(always)]
pub(crate) fn c_hash(text: &CStr) -> u64 {
    // FNV-1a.
    text.to_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
