//! `wakeloop._core.unpatched`: the check for patches, for code written in Python.

use std::sync::OnceLock;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyModule, PyTuple, PyType};

use super::class::Class;
use super::original::Original;
use crate::capi::class::ClassSpec;
use crate::capi::error::{exception, unless_raised};
use crate::capi::fallible::interned;
use crate::capi::imports;
use crate::capi::inspect::{boolean, clear_error};
use crate::capi::methods::TypeSlot;
use crate::capi::native::{self, Dealloc, This, native_class};
use crate::capi::shared::dict_item;
use crate::capi::{Borrowed, Raised, Ref};

/// `wakeloop._core.Unpatched`: checks whether classes and modules are unpatched.
#[derive(Debug)]
pub(crate) struct Unpatched(Vec<Part>);

#[derive(Debug)]
enum Part {
    Class(Class),
    /// A name has no original yet if only patches of it have been seen, such as one that was made before the import.
    Module {
        module: Ref,
        names: Vec<(Ref, OnceLock<Original>)>,
    },
}

// Only `unpatched` makes instances, by `native::create`.
native_class!(unsafe Unpatched, collected false);

impl Dealloc for Unpatched {}

impl Part {
    fn new(part: &Bound<'_, PyTuple>) -> PyResult<Part> {
        let owner = part.get_item(0)?;
        let names = part.iter().skip(1).map(|name| name.extract()).collect::<PyResult<Vec<String>>>()?;
        if owner.is_instance_of::<PyType>() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return Ok(Part::Class(Class::of(owner.into(), &names, true)?));
        }
        if !owner.is_instance_of::<PyModule>() {
            return Err(exception::<PyTypeError>("a part of unpatched() begins with a class or a module"));
        }
        let module = Ref::from(owner);
        let known = |name: &String| {
            let (name, original) = (interned(name)?, OnceLock::new());
            Original::is_in(&original, &module.getattr(&name)?)?;
            Ok((name, original))
        };
        let names = names.iter().map(known).collect::<Result<_, Raised>>()?;
        Ok(Part::Module { module, names })
    }

    fn is_unpatched(&self, object: Option<Borrowed<'_>>) -> Result<bool, Raised> {
        match self {
            Part::Class(class) => Ok(class.is_unpatched()
                && match object.filter(|object| class.has_instance(object)) {
                    Some(object) => class.is_used_by(&object)?,
                    None => true,
                }),
            Part::Module { module, names } => {
                for (name, original) in names {
                    let found = value_in(module, name).unwrap_or_else(|raised| raised.take());
                    if !Original::is_in(original, &found)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }
}

/// The attribute of a module. In the dict of a plain module it is found at a quarter of the cost.
fn value_in(module: &Ref, name: &Ref) -> Result<Ref, Raised> {
    // SAFETY: an exact module has a dict. Names are strings, whose hashing and comparing runs no Python code.
    let found = unsafe {
        let plain = ffi::PyModule_CheckExact(module.as_ptr()) != 0;
        plain.then(|| dict_item(ffi::PyModule_GetDict(module.as_ptr()), name)).flatten()
    };
    found.map_or_else(
        || {
            clear_error();
            module.getattr(name)
        },
        Ok,
    )
}

impl Unpatched {
    fn ask(&self, object: Option<Borrowed<'_>>) -> Result<bool, Raised> {
        for part in &self.0 {
            if !part.is_unpatched(object)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn call(this: This<'_, Unpatched>, arguments: Borrowed<'_>, _: Option<Borrowed<'_>>) -> Result<Ref, Raised> {
    let object = arguments.tuple_items().and_then(|items| items.first().copied());
    this.ask(object).map(boolean)
}

/// Calls a check that [`unpatched`] has made. Another object is no check, and a check that fails finds a patch.
pub(crate) fn is_unpatched(check: &Ref) -> bool {
    check.with_native(|check: This<'_, Unpatched>| unless_raised(check.ask(None))).flatten() == Some(true)
}

/// Return a callable that checks whether classes and modules are unpatched.
///
/// `parts` is a tuple of tuples, each of which has a class or a module, followed by names in it. For a class, the values
/// that these names override in its bases are checked too. The callable returns True if every name still has the value
/// that its package defined. If it is called with an object, it also checks that the object uses the methods of each of
/// the classes of which it is an instance.
#[pyfunction]
pub(crate) fn unpatched<'py>(parts: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    let py = parts.py();
    let parts = parts.iter().map(|part| Part::new(part.cast()?)).collect::<PyResult<_>>()?;
    Ok(native::create(Unpatched(parts))?.bind(py))
}

/// The class that a module defines under a name, also if the program has put something else there before the import.
#[pyfunction]
pub(crate) fn defined_class<'py>(py: Python<'py>, module: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
    imports::defined_class(py, module, name)
}

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    ClassSpec::<Unpatched>::new(c"wakeloop._core.Unpatched")
        .doc(c"Tells whether classes and modules still have what their packages defined. `unpatched` makes one.")
        .slots(&[TypeSlot::dealloc(), TypeSlot::call(call)])
        .build(py)
}
