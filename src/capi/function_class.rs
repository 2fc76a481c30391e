//! The class of native [functions](Function), as Python code sees it.

use std::ffi::c_void;

use pyo3::ffi;
use pyo3::prelude::*;

use super::class::{ClassSpec, field};
use super::function::Function;
use super::methods::{Attribute, Method, TypeSlot};
use super::native::This;
use super::object::{Borrowed, Ref};

unsafe extern "C" {
    fn PyMethod_New(function: *mut ffi::PyObject, object: *mut ffi::PyObject) -> *mut ffi::PyObject;
}

/// `__get__`: a bound method for an instance, the function itself for a class.
unsafe extern "C" fn get(
    function: *mut ffi::PyObject,
    object: *mut ffi::PyObject,
    _class: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter's call with live objects, or null.
    unsafe { if object.is_null() { ffi::Py_NewRef(function) } else { PyMethod_New(function, object) } }
}

/// `types.FunctionType`.
fn python_function() -> Borrowed<'static> {
    // SAFETY: a class that lives as long as the interpreter.
    unsafe { Borrowed::from_ptr((&raw mut ffi::PyFunction_Type).cast()) }
}

/// `__reduce__`.
fn reduce(this: This<'_, Function>) -> Ref {
    this.about.qualified_name.clone_ref()
}

fn repr(this: This<'_, Function>) -> String {
    let name = this.about.qualified_name.text().unwrap_or_default();
    format!("<function {name} at {:#x}>", this.object().as_ptr() as usize)
}

/// Makes the class. Called once, by the module's initialisation, before any other class is made.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    let get: ffi::descrgetfunc = get;
    // SAFETY: `get` is what the slot asks for.
    let get = unsafe { TypeSlot::raw(ffi::Py_tp_descr_get, get as *mut c_void) };
    ClassSpec::<Function>::new(c"wakeloop._core.Function")
        .methods(&[Method::no_args(c"__reduce__", reduce, c"Its name, by which it is pickled.")])
        .attributes(&[
            // `inspect` and `unittest.mock` ask for a function of Python by `isinstance`.
            Attribute::read_only(c"__class__", |_: This<'_, Function>| python_function()),
            Attribute::read_only(c"__closure__", |_: This<'_, Function>| ()),
            Attribute::read_only(c"__name__", |this: This<'_, Function>| this.about.name.clone_ref()),
            Attribute::read_only(c"__qualname__", |this: This<'_, Function>| {
                this.about.qualified_name.clone_ref()
            }),
            Attribute::read_only(c"__module__", |this: This<'_, Function>| this.about.module.clone_ref()),
            Attribute::read_only(c"__doc__", |this: This<'_, Function>| this.about.text.clone_ref()),
            Attribute::read_only(c"__code__", |this| Function::of_template(this, "__code__")),
            Attribute::read_only(c"__defaults__", |this| Function::of_template(this, "__defaults__")),
            Attribute::read_only(c"__kwdefaults__", |this| Function::of_template(this, "__kwdefaults__")),
            Attribute::read_only(c"__annotations__", |this| Function::of_template(this, "__annotations__")),
            Attribute::read_only(c"__globals__", |this| Function::of_template(this, "__globals__")),
            Attribute::read_only(c"__builtins__", |this| Function::of_template(this, "__builtins__")),
            Attribute::read_only(c"__type_params__", |this| Function::of_template(this, "__type_params__")),
            Attribute::dict(),
        ])
        .dict(field!(Function, dict))
        .weaklist(field!(Function, weaklist))
        .vectorcall(field!(Function, vectorcall))
        .slots(&TypeSlot::collected())
        .slots(&[TypeSlot::dealloc(), TypeSlot::repr(repr), get])
        .build(py)
        .map(drop)
}
