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

use super::call::getattr;
use super::error::Raised;
use super::object::Ref;

/// A method that native code stands in for.
#[derive(Debug)]
struct Known {
    name: Ref,
    /// What the class has under that name: a function or a property.
    value: Ref,
    function: Ref,
    code: Ref,
}

/// A class and the methods of it that matter.
#[derive(Debug)]
pub(crate) struct Pristine {
    kind: Ref,
    methods: Vec<Known>,
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
    /// Takes note of the class as it is now.
    ///
    /// `methods` are names of functions, or of properties, whose getter is what counts.
    pub(crate) fn new(kind: Ref, methods: &[Ref]) -> Result<Pristine, Raised> {
        let methods = methods.iter().map(|name| Known::of(&kind, name)).collect::<Result<_, _>>()?;
        Ok(Pristine { kind, methods, get_method: find_get_method(), good: Cell::new(0), bad: Cell::new(0) })
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
        ((tag != 0 && tag == self.good.get()) || self.look_again())
            && self.methods.iter().all(Known::has_its_code)
    }

    /// Does the instance use method `index` of the class, and nothing of its own?
    #[inline(always)]
    pub(crate) fn is_used_by(&self, object: *mut ffi::PyObject, index: usize) -> Result<bool, Raised> {
        let known = &self.methods[index];
        let Some(get_method) = self.get_method else { return Ok(false) };
        let mut found = null_mut();
        // SAFETY: live objects; `found` becomes an owned reference, or null with an error.
        unsafe {
            let unbound = get_method(object, known.name.as_ptr(), &mut found) == 1;
            let found = Ref::from_owned(found).ok_or(Raised)?;
            Ok(unbound && found.as_ptr() == known.value.as_ptr())
        }
    }

    fn tag(&self) -> c_uint {
        // SAFETY: a type object that we own. The field has been there since Python 2.
        unsafe { (*self.kind.as_ptr().cast::<ffi::PyTypeObject>()).tp_version_tag }
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
            // Looking an attribute up gives the class a tag. What is found is the known function or property,
            // which runs nothing when it is taken from its class.
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
        // SAFETY: a type object that we own.
        let plain = unsafe {
            (*self.kind.as_ptr().cast::<ffi::PyTypeObject>()).tp_getattro.map(|found| found as usize)
                == Some(ffi::PyObject_GenericGetAttr as *const () as usize)
        };
        let intact = plain && self.methods.iter().all(|known| self.in_place(known));
        if intact { &self.good } else { &self.bad }.set(tag);
        intact
    }

    /// Is what the class has under this name what it had? Asks the dicts of its bases themselves.
    fn in_place(&self, known: &Known) -> bool {
        // SAFETY: a live type's bases and their dicts, none of which can change while no Python code runs;
        // names are strings, whose hashing and comparing runs none. A static type's dict may be null.
        unsafe {
            let bases = (*self.kind.as_ptr().cast::<ffi::PyTypeObject>()).tp_mro;
            for index in 0..ffi::PyTuple_Size(bases) {
                let dict = (*ffi::PyTuple_GetItem(bases, index).cast::<ffi::PyTypeObject>()).tp_dict;
                if dict.is_null() {
                    continue;
                }
                let found = ffi::PyDict_GetItemWithError(dict, known.name.as_ptr());
                if !found.is_null() {
                    return found == known.value.as_ptr();
                }
            }
            ffi::PyErr_Clear();
        }
        false
    }
}

impl Known {
    fn of(kind: &Ref, name: &Ref) -> Result<Known, Raised> {
        let value = getattr(kind.as_ptr(), name.as_ptr())?;
        // SAFETY: live objects and C strings; owned references or null with an error.
        unsafe {
            let function = if ffi::PyObject_TypeCheck(value.as_ptr(), &raw mut ffi::PyProperty_Type) != 0 {
                Ref::from_owned(ffi::PyObject_GetAttrString(value.as_ptr(), c"fget".as_ptr()))
                    .ok_or(Raised)?
            } else {
                value.clone_ref()
            };
            let code = Ref::from_owned(ffi::PyObject_GetAttrString(function.as_ptr(), c"__code__".as_ptr()));
            let code = code.ok_or(Raised)?;
            Ok(Known { name: name.clone_ref(), value, function, code })
        }
    }

    #[inline(always)]
    fn has_its_code(&self) -> bool {
        // SAFETY: `of` found a code object on it, so it is a function; a borrowed reference.
        unsafe { ffi::PyFunction_GetCode(self.function.as_ptr()) == self.code.as_ptr() }
    }
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
