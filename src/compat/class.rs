//! Checks whether a class still has the methods that native code replaces.
//!
//! Native code must not change what a program can observe. So it is used only while no method that it replaces is
//! patched: on the class, on one of its bases, on an instance, or by another code object in the same function. CPython
//! gives a class a new version tag when the class or one of its bases changes, and never uses a tag twice. So an
//! unchanged class costs one comparison of tags.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::inline_values::InlineValues;
use super::original::{Code, Original};
use crate::capi::fallible::interned;
use crate::capi::inspect::clear_error;
use crate::capi::shared;
use crate::capi::{Borrowed, Raised, Ref};

/// A method that native code replaces.
#[derive(Debug)]
struct Method {
    name: Ref,
    /// The unpatched values of this name in the class and its bases, in method resolution order; at most one of them
    /// without [`Class::with_overridden`]. Empty if the class has no such method.
    originals: Vec<Original>,
    /// A value of this name was patched before this class was recorded.
    patched_before: bool,
}

/// A class, with the methods and the instance attributes that native code relies on.
#[derive(Debug)]
pub(crate) struct Class {
    kind: Ref,
    methods: Vec<Method>,
    /// The Python functions among the methods, with their code.
    codes: Vec<Code>,
    /// Also check what the methods override: the same names in all base classes.
    with_overridden: bool,
    /// The names of the instances' attributes. The class must not define them itself, except as `None`.
    attributes: Vec<Ref>,
    values: Option<InlineValues>,
    /// The last version tag at which the class had all its methods, and the last one at which it had not. 0 is no tag.
    /// Relaxed everywhere: they are only compared, and two threads that look find the same.
    unpatched: AtomicU32,
    patched: AtomicU32,
}

pub(super) type GetMethod =
    unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut *mut ffi::PyObject) -> c_int;

/// Finds `_PyObject_GetMethod`, which looks up a method without binding it. The function is private, but every known
/// CPython exports it. Where it is missing, every instance counts as patched.
pub(super) fn find_get_method() -> Option<GetMethod> {
    static FOUND: OnceLock<Option<GetMethod>> = OnceLock::new();
    // SAFETY: a C string. The symbol has had this signature since 3.7, and null is `None`.
    *FOUND.get_or_init(|| unsafe {
        std::mem::transmute(libc::dlsym(libc::RTLD_DEFAULT, c"_PyObject_GetMethod".as_ptr()))
    })
}

impl Class {
    /// Records the current methods of a class and the names of all attributes that its instances have. For a property
    /// the code of its getter is recorded. A class that lists no attributes has native methods, so no code is recorded.
    pub(crate) fn init(
        kind: Bound<'_, PyAny>,
        methods: &[&str],
        attributes: &[String],
    ) -> Result<Class, Raised> {
        let kind = Ref::from(kind);
        let attributes: Vec<_> = attributes.iter().map(|name| interned(name)).collect::<Result<_, _>>()?;
        let values = if attributes.is_empty() { None } else { InlineValues::init(&kind, &attributes) };
        // The self-test may have failed with an exception. Then the public API is used, so the exception is dropped.
        clear_error();
        let mut class = Class::of(kind, methods, false)?;
        if attributes.is_empty() {
            class.codes.clear();
        }
        Ok(Class { attributes, values, ..class })
    }

    /// Records the current methods of a class. With `with_overridden`, also those that they override.
    pub(crate) fn of(kind: Ref, methods: &[&str], with_overridden: bool) -> Result<Class, Raised> {
        let mut class = Class {
            kind,
            methods: Vec::with_capacity(methods.len()),
            codes: Vec::new(),
            with_overridden,
            attributes: Vec::new(),
            values: None,
            unpatched: AtomicU32::new(0),
            patched: AtomicU32::new(0),
        };
        for name in methods {
            let mut method = Method { name: interned(name)?, originals: Vec::new(), patched_before: false };
            let found: Vec<_> = class.found(&method.name).collect();
            for found in found {
                match Original::of(found)? {
                    Some(original) => method.originals.push(original),
                    None => method.patched_before = true,
                }
            }
            class.codes.extend(method.originals.iter().filter_map(Original::code));
            class.methods.push(method);
        }
        Ok(class)
    }

    /// Is `object` an instance of exactly this class?
    #[inline(always)]
    pub(crate) fn is_class_of(&self, object: &Ref) -> bool {
        object.is_exactly(&self.kind)
    }

    /// Is `object` an instance of this class or of a subclass?
    pub(super) fn has_instance(&self, object: &Ref) -> bool {
        // SAFETY: a live object and a type.
        unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), self.raw()) != 0 }
    }

    /// Does the class have the methods that were recorded, with the same code?
    #[inline(always)]
    pub(crate) fn is_unpatched(&self) -> bool {
        self.has_methods() && Code::are_in_place(&self.codes)
    }

    /// Is `object` an instance of exactly this class, whose methods are patched neither on the class nor on the object?
    #[inline(always)]
    pub(crate) fn is_unpatched_on(&self, object: &Ref) -> Result<bool, Raised> {
        if !self.is_class_of(object) || !self.is_unpatched() {
            return Ok(false);
        }
        if let Some(values) = &self.values {
            // SAFETY: an instance of the class.
            if unsafe { values.are_all(object.as_ptr()) } {
                return Ok(true);
            }
        }
        self.is_used_by(object)
    }

    /// Does an object, such as an instance of a subclass, use the methods of this class? May run the object's
    /// `__getattr__`.
    pub(crate) fn is_used_by(&self, object: &Ref) -> Result<bool, Raised> {
        let Some(get_method) = find_get_method() else { return Ok(false) };
        for method in &self.methods {
            let Some(original) = method.originals.first() else { return Ok(false) };
            // A property takes precedence over an attribute of the instance.
            if original.is_property() {
                continue;
            }
            let mut found = null_mut();
            // SAFETY: live objects; `found` becomes an owned reference, or null with an error.
            unsafe {
                let unbound = get_method(object.as_ptr(), method.name.as_ptr(), &mut found) == 1;
                let found = Ref::from_owned(found).ok_or(Raised)?;
                if !unbound || !original.is_value(&found) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The patch that replaces a method. `index` counts the methods in the order in which they
    /// were recorded.
    #[inline(always)]
    pub(super) fn patch_of(&self, index: usize) -> Option<Ref> {
        let method = &self.methods[index];
        if self.has_methods() && method.originals.first().is_none_or(Original::has_code) {
            return None;
        }
        self.look_for_patch(method)
    }

    #[cold]
    fn look_for_patch(&self, method: &Method) -> Option<Ref> {
        let original = method.originals.first();
        self.found(&method.name).next().filter(|found| !original.is_some_and(|original| original.is(found)))
    }

    /// Attribute `index` of an instance for which [`Class::is_unpatched_on`] holds, if it lies inline. It is valid
    /// until other code runs.
    #[inline(always)]
    fn inline_value(&self, object: &Ref, index: usize) -> Option<Borrowed<'_>> {
        // SAFETY: an instance of the class. The callers own or compare the value before other code runs.
        self.values.as_ref().and_then(|values| unsafe { values.get(object, index) })
    }

    /// Attribute `index` of an instance for which [`Class::is_unpatched_on`] holds.
    #[inline(always)]
    pub(crate) fn get(&self, object: &Ref, index: usize) -> Result<Ref, Raised> {
        let inline = self.inline_value(object, index);
        inline.map_or_else(|| object.getattr(&self.attributes[index]), |value| Ok(value.to_owned()))
    }

    /// Is attribute `index` `False`? For an instance for which [`Class::is_unpatched_on`] holds.
    #[inline(always)]
    pub(crate) fn is_false(&self, object: &Ref, index: usize) -> Result<bool, Raised> {
        match self.inline_value(object, index) {
            Some(value) => Ok(value.is_false()),
            None => Ok(object.getattr(&self.attributes[index])?.is_false()),
        }
    }

    /// Sets attribute `index` of an instance for which [`Class::is_unpatched_on`] holds.
    #[inline(always)]
    pub(crate) fn set(&self, object: &Ref, index: usize, value: Ref) -> Result<(), Raised> {
        let value = match &self.values {
            // SAFETY: an instance of the class.
            Some(values) => match unsafe { values.set(object.as_ptr(), index, value) } {
                Ok(()) => return Ok(()),
                Err(value) => value,
            },
            None => value,
        };
        object.setattr(&self.attributes[index], &value)
    }

    fn raw(&self) -> *mut ffi::PyTypeObject {
        self.kind.as_ptr().cast()
    }

    #[inline(always)]
    fn tag(&self) -> c_uint {
        // SAFETY: a type object that we own.
        unsafe { shared::version_tag(self.raw()) }
    }

    /// Does the class have the recorded methods? Does not compare their code.
    #[inline(always)]
    fn has_methods(&self) -> bool {
        let tag = self.tag();
        (tag != 0 && tag == self.unpatched.load(Ordering::Relaxed)) || self.look_again()
    }

    /// Compares the methods after the version tag has changed, and remembers the result for the new tag. A class
    /// without a tag (0) is compared each time: a change has cleared its tag, or CPython assigns no more tags to it.
    #[cold]
    fn look_again(&self) -> bool {
        let Some(first) = self.methods.first() else { return false };
        if self.tag() == 0 {
            if !self.in_place(first) {
                return false;
            }
            // Looking up an attribute assigns a tag. The lookup finds an original, whose `__get__` runs no Python code
            // when the class itself is asked. Without a tag the methods are compared below, so an error is dropped.
            if self.kind.getattr(&first.name).is_err() {
                clear_error();
            }
        }
        let tag = self.tag();
        if tag != 0 && tag == self.patched.load(Ordering::Relaxed) {
            return false;
        }
        let unpatched =
            self.has_plain_attributes() && self.methods.iter().all(|method| self.in_place(method));
        if tag != 0 {
            if unpatched { &self.unpatched } else { &self.patched }.store(tag, Ordering::Relaxed);
        }
        unpatched
    }

    /// Are the attributes stored only in the instances? Not if the class has a property, or a class attribute other
    /// than `None`, of the same name, or if it defines `__getattribute__` or `__setattr__`.
    fn has_plain_attributes(&self) -> bool {
        // SAFETY: a type object that we own.
        let (get, set) = unsafe { ((*self.raw()).tp_getattro, (*self.raw()).tp_setattro) };
        get.map(|get| get as usize) == Some(ffi::PyObject_GenericGetAttr as *const () as usize)
            && (self.attributes.is_empty()
                || set.map(|set| set as usize) == Some(ffi::PyObject_GenericSetAttr as *const () as usize))
            && self.attributes.iter().all(|name| {
                // Some class attributes are a default of `None`, such as `_source_traceback`.
                self.found(name).next().is_none_or(|found| found.is_none())
            })
    }

    /// Does the class have the recorded values of this method, and no others? Does not compare their code. A second
    /// place of the same value changes nothing: undoing a patch of an inherited method may leave one.
    fn in_place(&self, method: &Method) -> bool {
        let mut originals = method.originals.iter();
        let mut last: Option<&Original> = None;
        for found in self.found(&method.name) {
            if last.is_some_and(|last| last.is_value(&found)) {
                continue;
            }
            last = originals.next().filter(|original| original.is_value(&found));
            if last.is_none() {
                return false;
            }
        }
        !method.patched_before && originals.next().is_none()
    }

    /// The values of a name in the class and its bases, in method resolution order. Only the first one unless
    /// `with_overridden` is set.
    fn found(&self, name: &Ref) -> impl Iterator<Item = Ref> {
        // SAFETY: a live type.
        let order = unsafe { shared::resolution_order(self.raw()) };
        let count = order.as_ref().and_then(|order| order.tuple_items()).map_or(0, <[_]>::len);
        (0..count)
            .filter_map(move |index| {
                let bases = order.as_ref()?.tuple_items()?;
                // SAFETY: the bases are types. Names are strings, whose hashing and comparing runs no Python code.
                unsafe { shared::dict_item(shared::class_dict(bases[index].as_ptr().cast())?.as_ptr(), name) }
            })
            .take(if self.with_overridden { usize::MAX } else { 1 })
    }
}
