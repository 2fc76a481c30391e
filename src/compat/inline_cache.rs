//! A method that is looked up for each call, at the price of a comparison: an inline cache, as the interpreter has one
//! for each place of a call.
//!
//! A lookup asks the object's class and then the object. Its result is the same as long as the class has the same
//! version tag, and the object can have no attribute of that name: its attributes are inline ([`inline_values`]), and
//! the names that they can have are those of the last lookup. Where that is not so, the object is asked each time.

use std::cell::Cell;
use std::ffi::c_uint;
use std::ptr::null_mut;

use pyo3::ffi;

use super::class::find_get_method;
use super::inline_values;
use crate::capi::inspect::clear_error;
use crate::capi::shared::version_tag;
use crate::capi::{Borrowed, Raised, Ref};

/// The last lookup of one method, on objects of any class.
#[derive(Debug)]
pub(crate) struct InlineCache {
    /// The version tag of the class in which the function was found; 0 is no tag.
    tag: Cell<c_uint>,
    /// How many names the attributes of its instances could have.
    names: Cell<usize>,
    /// The function. The class refers to it as long as it has this tag.
    function: Cell<*mut ffi::PyObject>,
}

impl Default for InlineCache {
    fn default() -> InlineCache {
        InlineCache { tag: Cell::new(0), names: Cell::new(0), function: Cell::new(null_mut()) }
    }
}

impl InlineCache {
    /// `object.name(argument)`. The name is interned.
    #[inline(always)]
    pub(crate) fn call(&self, object: &Ref, name: &Ref, argument: Borrowed<'_>) -> Result<Ref, Raised> {
        match self.known(object) {
            Some(function) => function.call_with([object.borrow(), argument]),
            None => self.call_slowly(object, name, argument),
        }
    }

    /// The function that a lookup would find.
    #[inline(always)]
    fn known(&self, object: &Ref) -> Option<Ref> {
        let tag = self.tag.get();
        // SAFETY: a live object. A class with this tag is the one in which `look_up` has found the function, unchanged:
        // its instances have inline values, and the function lives.
        unsafe {
            let known = tag != 0
                && version_tag(ffi::Py_TYPE(object.as_ptr())) == tag
                && inline_values::is_name_count(object.as_ptr(), self.names.get());
            if known { Ref::from_nullable(self.function.get()) } else { None }
        }
    }

    #[cold]
    fn call_slowly(&self, object: &Ref, name: &Ref, argument: Borrowed<'_>) -> Result<Ref, Raised> {
        if inline_values::are_known() {
            self.look_up(object, name);
        }
        object.call_method(name, &[argument])
    }

    /// Remembers the function of this name in the object's class, if nothing that the object has can hide it. Asking a
    /// class without hooks runs no Python code.
    fn look_up(&self, object: &Ref, name: &Ref) {
        self.tag.set(0);
        let Some(get_method) = find_get_method() else { return };
        // SAFETY: live objects, and a layout that is known; `found` becomes an owned reference, or null with an error.
        unsafe {
            let class = ffi::Py_TYPE(object.as_ptr());
            let plain = (*class).tp_getattro.map(|get| get as usize);
            if plain != Some(ffi::PyObject_GenericGetAttr as *const () as usize) {
                return;
            }
            let Some(names) = inline_values::name_count(object.as_ptr()) else { return };
            let mut found = null_mut();
            let unbound = get_method(object.as_ptr(), name.as_ptr(), &mut found) == 1;
            let Some(function) = Ref::from_owned(found) else { return clear_error() };
            if unbound && !inline_values::may_have(object.as_ptr(), name) {
                self.function.set(function.as_ptr());
                self.names.set(names);
                self.tag.set(version_tag(class));
            }
        }
    }
}
