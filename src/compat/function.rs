//! A function of asyncio that native code replaces, in a class or in a module.

use std::sync::OnceLock;

use pyo3::prelude::*;

use super::module_name::ModuleName;
use super::original::Original;
use crate::capi::fallible::interned;
use crate::capi::imports::defined_class;
use crate::capi::{Raised, Ref};

/// Where a function is defined, and its unpatched value.
#[derive(Debug)]
pub(crate) struct Function {
    place: Place,
    /// Empty as long as only a patch has been seen, such as one that was made before wakeloop was imported.
    original: OnceLock<Original>,
}

#[derive(Debug)]
enum Place {
    Class { class: Ref, name: Ref },
    Module(&'static ModuleName),
}

impl Function {
    /// The function `module.class.name`, of the class that the module defines.
    pub(crate) fn in_class(py: Python<'_>, module: &str, class: &str, name: &str) -> PyResult<Function> {
        let class = defined_class(py, module, class)?.into();
        let name = interned(name)?;
        Function::at(Place::Class { class, name })
    }

    /// The function `module.name`. The module is watched for changes from now on.
    pub(crate) fn in_module(py: Python<'_>, module: &str, name: &str) -> PyResult<Function> {
        Function::at(Place::Module(ModuleName::watch(py, module, name)?))
    }

    fn at(place: Place) -> PyResult<Function> {
        let function = Function { place, original: OnceLock::new() };
        function.is_unpatched()?;
        Ok(function)
    }

    /// The function, or the patch that replaces it now.
    pub(crate) fn current(&self) -> Result<Ref, Raised> {
        match &self.place {
            Place::Class { class, name } => class.getattr(name),
            Place::Module(name) => name.get(),
        }
    }

    /// Is the current value the one that its package has defined?
    pub(crate) fn is_unpatched(&self) -> Result<bool, Raised> {
        self.is_original(&self.current()?)
    }

    /// The patch that replaces it, if there is one.
    pub(crate) fn patch(&self) -> Result<Option<Ref>, Raised> {
        let current = self.current()?;
        Ok((!self.is_original(&current)?).then_some(current))
    }

    /// Is the answer of [`Function::current`] valid until the next change? See [`ModuleName`].
    pub(crate) fn has_settled(&self) -> bool {
        match &self.place {
            Place::Class { .. } => true,
            Place::Module(name) => name.has_settled(),
        }
    }

    #[inline(always)]
    fn is_original(&self, found: &Ref) -> Result<bool, Raised> {
        Original::is_in(&self.original, found)
    }
}
