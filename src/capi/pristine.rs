//! Classes written in Python whose methods native code stands in for, and whether they still are what they
//! were when that code was written.
//!
//! A stand-in must not change what anyone can see, so it steps aside as soon as somebody has put something
//! else in the place of a method: on the class, on one of its bases, on an instance, or as another code object
//! in the same function. CPython gives a class a new version tag whenever anything in its inheritance changes, and
//! never gives the same tag twice, which makes the class's half of the question one comparison.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;

use super::call::getattr;
use super::error::Raised;
use super::fallible::interned;
use super::inline_values::InlineValues;
use super::object::Ref;

/// A method that native code stands in for.
#[derive(Debug)]
struct Known {
    name: Ref,
    /// What the class has under that name: a function, a property or a native method.
    value: Ref,
    /// An attribute of an instance wins over it.
    overridable: bool,
}

/// A class, the methods of it that matter, and the attributes of its instances.
#[derive(Debug)]
pub(crate) struct Pristine {
    kind: Ref,
    methods: Vec<Known>,
    /// The functions in them, with their code.
    codes: Vec<(Ref, Ref)>,
    /// The instances' attributes, none of which the class has anything to say about.
    attributes: Vec<Ref>,
    values: Option<InlineValues>,
    get_method: Option<GetMethod>,
    /// The version tags under which everything was in place, and under which something was not.
    good: Cell<c_uint>,
    bad: Cell<c_uint>,
}

type GetMethod =
    unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut *mut ffi::PyObject) -> c_int;

/// `_PyObject_GetMethod`: an attribute without the bound method around it. Exported by every CPython that
/// we know, but private; where it is missing, nothing is stood in for.
fn find_get_method() -> Option<GetMethod> {
    // SAFETY: a C string; the symbol has had this signature since 3.7.
    unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, c"_PyObject_GetMethod".as_ptr());
        (!address.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, GetMethod>(address))
    }
}

impl Pristine {
    /// Takes note of the class as it is now: of its methods, of which a property counts by its getter, and of
    /// the names of all the attributes that its instances have.
    pub(crate) fn new(
        kind: Bound<'_, PyAny>,
        methods: &[&str],
        attributes: &[String],
    ) -> Result<Pristine, Raised> {
        let kind = Ref::from(kind);
        let mut known = Vec::new();
        let mut codes = Vec::new();
        for name in methods {
            let (method, code) = Known::of(&kind, interned(name)?)?;
            known.push(method);
            // A class without attributes that matter is native; what it inherits is not stood in for.
            codes.extend(code.filter(|_| !attributes.is_empty()));
        }
        let methods = known;
        let attributes: Vec<_> = attributes.iter().map(|name| interned(name)).collect::<Result<_, _>>()?;
        let values = if attributes.is_empty() { None } else { InlineValues::learn(&kind, &attributes) };
        // Whatever stopped the learning half way is of no interest.
        // SAFETY: the GIL is held.
        unsafe { ffi::PyErr_Clear() };
        let get_method = find_get_method();
        Ok(Pristine {
            kind,
            methods,
            codes,
            attributes,
            values,
            get_method,
            good: Cell::new(0),
            bad: Cell::new(0),
        })
    }

    /// Is `object` an instance of this very class?
    #[inline(always)]
    pub(crate) fn is_class_of(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: a live object.
        unsafe { ffi::Py_TYPE(object).cast() == self.kind.as_ptr() }
    }

    /// Is the class as it was? No Python code runs in here.
    #[inline(always)]
    pub(crate) fn is_intact(&self) -> bool {
        let tag = self.tag();
        ((tag != 0 && tag == self.good.get()) || self.look_again()) && self.codes.iter().all(has_code)
    }

    /// Does an instance of the class use the class's methods, and none of its own?
    #[inline(always)]
    pub(crate) fn is_plain(&self, object: *mut ffi::PyObject) -> Result<bool, Raised> {
        if !self.is_class_of(object) || !self.is_intact() {
            return Ok(false);
        }
        if let Some(values) = &self.values {
            // SAFETY: an instance of the class.
            if unsafe { values.are_all(object) } {
                return Ok(true);
            }
        }
        for known in self.methods.iter().filter(|known| known.overridable) {
            if !self.is_used_by(object, known)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_used_by(&self, object: *mut ffi::PyObject, known: &Known) -> Result<bool, Raised> {
        let Some(get_method) = self.get_method else { return Ok(false) };
        let mut found = null_mut();
        // SAFETY: live objects; `found` becomes an owned reference, or null with an error.
        unsafe {
            let unbound = get_method(object, known.name.as_ptr(), &mut found) == 1;
            let found = Ref::from_owned(found).ok_or(Raised)?;
            Ok(unbound && found.as_ptr() == known.value.as_ptr())
        }
    }

    /// Attribute `index` of an instance for which [`Pristine::is_plain`] holds.
    #[inline(always)]
    pub(crate) fn get(&self, object: *mut ffi::PyObject, index: usize) -> Result<Ref, Raised> {
        // SAFETY: an instance of the class.
        let inline = self.values.as_ref().and_then(|values| unsafe { values.get(object, index) });
        match inline {
            Some(value) => Ok(value),
            None => getattr(object, self.attributes[index].as_ptr()),
        }
    }

    /// Sets attribute `index` of an instance for which [`Pristine::is_plain`] holds.
    #[inline(always)]
    pub(crate) fn set(&self, object: *mut ffi::PyObject, index: usize, value: Ref) -> Result<(), Raised> {
        let value = match &self.values {
            // SAFETY: an instance of the class.
            Some(values) => match unsafe { values.set(object, index, value) } {
                Ok(()) => return Ok(()),
                Err(value) => value,
            },
            None => value,
        };
        // SAFETY: live objects; -1 with an error set means failure.
        let set = unsafe { ffi::PyObject_SetAttr(object, self.attributes[index].as_ptr(), value.as_ptr()) };
        if set < 0 { Err(Raised) } else { Ok(()) }
    }

    fn raw(&self) -> *mut ffi::PyTypeObject {
        self.kind.as_ptr().cast()
    }

    fn tag(&self) -> c_uint {
        // SAFETY: a type object that we own. The field has been there since Python 2.
        unsafe { (*self.raw()).tp_version_tag }
    }

    /// The class is not known under its present tag. 0 means that it has none: a change took it away, or CPython
    /// has given it too many.
    #[cold]
    fn look_again(&self) -> bool {
        let Some(first) = self.methods.first() else { return false };
        if self.tag() == 0 {
            if !self.in_place(first) {
                return false;
            }
            // Looking an attribute up gives the class a tag. What is found is the known method, which runs
            // nothing when it is taken from its class.
            // SAFETY: live objects; the error of a failed lookup is nobody's business.
            unsafe {
                drop(Ref::from_owned(ffi::PyObject_GetAttr(self.kind.as_ptr(), first.name.as_ptr())));
                ffi::PyErr_Clear();
            }
        }
        let tag = self.tag();
        if tag == 0 || tag == self.bad.get() {
            return false;
        }
        let intact = self.has_plain_attributes() && self.methods.iter().all(|known| self.in_place(known));
        if intact { &self.good } else { &self.bad }.set(tag);
        intact
    }

    /// Are the instances' attributes got and set without anybody's doing? Such as a property, or a class
    /// attribute in the place of one that is not set.
    fn has_plain_attributes(&self) -> bool {
        // SAFETY: a type object that we own.
        let (get, set) = unsafe { ((*self.raw()).tp_getattro, (*self.raw()).tp_setattro) };
        get.map(|get| get as usize) == Some(ffi::PyObject_GenericGetAttr as *const () as usize)
            && set.map(|set| set as usize) == Some(ffi::PyObject_GenericSetAttr as *const () as usize)
            && self.attributes.iter().all(|name| {
                let found = self.lookup(name);
                // A default such as that of `_source_traceback` is nothing more.
                // SAFETY: comparing with the address of `None`.
                found.is_null() || found == unsafe { ffi::Py_None() }
            })
    }

    /// Is what the class has under this name what it had?
    fn in_place(&self, known: &Known) -> bool {
        self.lookup(&known.name) == known.value.as_ptr()
    }

    /// What the class has under a name, borrowed, or null. Asks the dicts of its bases themselves.
    fn lookup(&self, name: &Ref) -> *mut ffi::PyObject {
        // SAFETY: a live type's bases and their dicts, none of which can change while no Python code runs;
        // names are strings, whose hashing and comparing runs none. A static type's dict may be null.
        unsafe {
            let bases = (*self.raw()).tp_mro;
            for index in 0..ffi::PyTuple_Size(bases) {
                let dict = (*ffi::PyTuple_GetItem(bases, index).cast::<ffi::PyTypeObject>()).tp_dict;
                if dict.is_null() {
                    continue;
                }
                let found = ffi::PyDict_GetItemWithError(dict, name.as_ptr());
                if !found.is_null() {
                    return found;
                }
            }
            ffi::PyErr_Clear();
            null_mut()
        }
    }
}

impl Known {
    /// With its function and that function's code, if there is one.
    fn of(kind: &Ref, name: Ref) -> Result<(Known, Option<(Ref, Ref)>), Raised> {
        let value = getattr(kind.as_ptr(), name.as_ptr())?;
        // SAFETY: live objects and C strings; owned references or null with an error.
        unsafe {
            let property = ffi::PyObject_TypeCheck(value.as_ptr(), &raw mut ffi::PyProperty_Type) != 0;
            let function = if property {
                Ref::from_owned(ffi::PyObject_GetAttrString(value.as_ptr(), c"fget".as_ptr()))
                    .ok_or(Raised)?
            } else {
                value.clone_ref()
            };
            let code = Ref::from_owned(ffi::PyObject_GetAttrString(function.as_ptr(), c"__code__".as_ptr()));
            if code.is_none() {
                ffi::PyErr_Clear();
            }
            Ok((Known { name, value, overridable: !property }, code.map(|code| (function, code))))
        }
    }
}

#[inline(always)]
fn has_code((function, code): &(Ref, Ref)) -> bool {
    // SAFETY: it has a code object, so it is a function; a borrowed reference.
    unsafe { ffi::PyFunction_GetCode(function.as_ptr()) == code.as_ptr() }
}

/// What is looked up once by the module's Python half and then only read.
#[derive(Debug)]
pub(crate) struct Once<T>(OnceLock<T>);

// SAFETY: filled and read with the GIL held only, and never dropped.
unsafe impl<T> Send for Once<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Once<T> {}

impl<T> Once<T> {
    pub(crate) const fn new() -> Once<T> {
        Once(OnceLock::new())
    }

    pub(crate) fn set(&self, value: T) {
        // A second import of the package finds what the first has left.
        let _ = self.0.set(value);
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.get()
    }
}
