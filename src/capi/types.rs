//! Heap types made by hand, and method tables of fast functions.
//!
//! A pyclass is always tracked by the collector and its methods go through a trampoline; a raw type
//! decides both for itself. Tables live as long as the process: they are leaked once, at import.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

use super::object::Slot;

/// A function of the `METH_FASTCALL | METH_KEYWORDS` kind.
pub(crate) type FastFunction = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    ffi::Py_ssize_t,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// A function without arguments (`METH_NOARGS`).
pub(crate) type PlainFunction =
    unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;

/// One row of a method table: the name, the function and the text for `help()`. A text that begins with
/// the call, `name(parameters)` and an empty line, tells `inspect` and the stub checker the signature.
#[derive(Debug)]
pub(crate) enum Method {
    Fast(&'static CStr, FastFunction, &'static CStr),
    NoArgs(&'static CStr, PlainFunction, &'static CStr),
    OneArg(&'static CStr, PlainFunction, &'static CStr),
    /// A method without arguments that Python code calls, while the interpreter uses the type's slot of this name.
    BesideSlot(&'static CStr, PlainFunction, &'static CStr),
}

impl Method {
    fn definition(&self) -> ffi::PyMethodDef {
        let (name, pointer, flags, doc) = match *self {
            Method::Fast(name, function, doc) => (
                name,
                ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: function },
                ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
                doc,
            ),
            Method::NoArgs(name, function, doc) => {
                (name, ffi::PyMethodDefPointer { PyCFunction: function }, ffi::METH_NOARGS, doc)
            }
            Method::OneArg(name, function, doc) => {
                (name, ffi::PyMethodDefPointer { PyCFunction: function }, ffi::METH_O, doc)
            }
            Method::BesideSlot(name, function, doc) => (
                name,
                ffi::PyMethodDefPointer { PyCFunction: function },
                ffi::METH_NOARGS | ffi::METH_COEXIST,
                doc,
            ),
        };
        ffi::PyMethodDef {
            ml_name: name.as_ptr(),
            ml_meth: pointer,
            ml_flags: flags,
            ml_doc: doc_of(name, doc),
        }
    }
}

/// The text in the form from which CPython takes a signature: `name($self, parameters)`, a line `--`. Leaked
/// with its table.
fn doc_of(name: &CStr, doc: &'static CStr) -> *const c_char {
    let signature = || -> Option<CString> {
        let (name, doc) = (name.to_str().ok()?, doc.to_str().ok()?);
        let (parameters, text) = doc.strip_prefix(name)?.strip_prefix('(')?.split_once(")\n\n")?;
        let comma = if parameters.is_empty() { "" } else { ", " };
        CString::new(format!("{name}($self{comma}{parameters})\n--\n\n{text}")).ok()
    };
    match signature() {
        Some(whole) => CString::into_raw(whole),
        None => doc.as_ptr(),
    }
}

/// One row of an attribute table.
#[derive(Debug)]
pub(crate) struct Attribute {
    pub(crate) name: &'static CStr,
    pub(crate) get: ffi::getter,
    pub(crate) set: Option<ffi::setter>,
}

/// Puts fast methods on a type that pyo3 made: the trampoline of a `#[pymethods]` function costs 200 to
/// 470 instructions a call, which `call_soon` cannot afford.
pub(crate) fn add_methods(kind: &Bound<'_, pyo3::types::PyType>, table: &[Method]) -> PyResult<()> {
    for method in table {
        let definition = Box::leak(Box::new(method.definition()));
        // SAFETY: the type is alive and mutable, the definition is leaked, hence 'static.
        let descriptor = unsafe {
            Bound::from_owned_ptr_or_err(kind.py(), ffi::PyDescr_NewMethod(kind.as_type_ptr(), definition))?
        };
        // SAFETY: `ml_name` is one of our C literals.
        let name = unsafe { CStr::from_ptr(definition.ml_name) };
        kind.setattr(name.to_string_lossy().as_ref(), descriptor)?;
    }
    Ok(())
}

/// The body of a heap type's `tp_traverse`: the type, which its instances keep alive, and what they hold.
///
/// # Safety
/// The collector's call for `object`, with the collector's own visitor.
#[inline(always)]
pub(crate) unsafe fn visit_instance<'a>(
    object: *mut ffi::PyObject,
    slots: impl IntoIterator<Item = &'a Slot>,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's word.
    unsafe {
        let mut result = visit(ffi::Py_TYPE(object).cast(), argument);
        for slot in slots {
            if result != 0 {
                break;
            }
            result = slot.visit(visit, argument);
        }
        result
    }
}

/// What `PyType_FromSpecWithBases` needs, with the lists in Rust form.
pub(crate) struct TypeSpec<'a> {
    pub(crate) name: &'static CStr,
    pub(crate) size: usize,
    pub(crate) flags: std::ffi::c_ulong,
    pub(crate) methods: &'a [Method],
    pub(crate) attributes: &'a [Attribute],
    /// Offsets of `__weaklist__` and `__dict__`, if the type has them.
    pub(crate) weaklist_offset: Option<usize>,
    pub(crate) dict_offset: Option<usize>,
    /// Attributes that hold an object, and their offsets: as with `__slots__`, the interpreter itself traverses,
    /// clears and releases them, where the type leaves that to its Python base class.
    pub(crate) objects: &'a [(&'static CStr, usize)],
    pub(crate) slots: &'a [(c_int, *mut c_void)],
    pub(crate) bases: Option<Bound<'a, pyo3::types::PyTuple>>,
}

impl TypeSpec<'_> {
    /// Builds the type; it lives for ever (one reference is leaked).
    pub(crate) fn build(self, py: Python<'_>) -> PyResult<*mut ffi::PyTypeObject> {
        let mut methods: Vec<_> = self.methods.iter().map(Method::definition).collect();
        methods.push(ffi::PyMethodDef::zeroed());
        let mut attributes: Vec<_> = self
            .attributes
            .iter()
            .map(|attribute| ffi::PyGetSetDef {
                name: attribute.name.as_ptr(),
                get: Some(attribute.get),
                set: attribute.set,
                doc: std::ptr::null(),
                closure: std::ptr::null_mut(),
            })
            .collect();
        attributes.push(ffi::PyGetSetDef::default());
        let mut members = Vec::new();
        for (name, offset) in
            [(c"__weaklistoffset__", self.weaklist_offset), (c"__dictoffset__", self.dict_offset)]
        {
            if let Some(offset) = offset {
                members.push(ffi::PyMemberDef {
                    name: name.as_ptr(),
                    type_code: ffi::Py_T_PYSSIZET,
                    offset: offset as ffi::Py_ssize_t,
                    flags: ffi::Py_READONLY,
                    doc: std::ptr::null(),
                });
            }
        }
        members.extend(self.objects.iter().map(|(name, offset)| ffi::PyMemberDef {
            name: name.as_ptr(),
            type_code: ffi::Py_T_OBJECT_EX,
            offset: *offset as ffi::Py_ssize_t,
            flags: 0,
            doc: std::ptr::null(),
        }));
        members.push(ffi::PyMemberDef::default());

        let mut slots: Vec<_> =
            self.slots.iter().map(|&(slot, pfunc)| ffi::PyType_Slot { slot, pfunc }).collect();
        let tables = [
            (ffi::Py_tp_methods, Box::leak(methods.into_boxed_slice()).as_mut_ptr().cast::<c_void>()),
            (ffi::Py_tp_getset, Box::leak(attributes.into_boxed_slice()).as_mut_ptr().cast()),
            (ffi::Py_tp_members, Box::leak(members.into_boxed_slice()).as_mut_ptr().cast()),
        ];
        slots.extend(tables.map(|(slot, pfunc)| ffi::PyType_Slot { slot, pfunc }));
        slots.push(ffi::PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() });
        let mut spec = ffi::PyType_Spec {
            name: self.name.as_ptr(),
            basicsize: self.size as c_int,
            itemsize: 0,
            flags: self.flags as u32,
            slots: slots.as_mut_ptr(),
        };
        let bases = self.bases.as_ref().map_or(std::ptr::null_mut(), |bases| bases.as_ptr());
        // SAFETY: every table is leaked and ends with its sentinel; the slot functions have the
        // signatures that their slot numbers ask for (each caller's table says so).
        unsafe {
            let kind = ffi::PyType_FromSpecWithBases(&mut spec, bases);
            if kind.is_null() {
                return Err(PyErr::fetch(py));
            }
            Ok(kind.cast())
        }
    }
}
