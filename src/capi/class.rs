//! How the class of a native object is made.
//!
//! A pyo3 class is always tracked by the collector, and its methods go through a trampoline that costs 200 to 470
//! instructions a call. A class made here decides both for itself. Its tables live as long as the process: they are
//! leaked once, at import.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::marker::PhantomData;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use super::error::exception;
use super::fallible::Fallible;
use super::function::{self, Definition};
use super::methods::{Attribute, Method, TypeSlot};
use super::native::{self, Native, WeakList};
use super::object::Slot;

/// Where a field of this type lies among the fields of a `T`. Made by [`field!`](crate::capi::class::field).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<T, V> {
    offset: usize,
    kind: PhantomData<fn(&T) -> &V>,
}

impl<T, V> Field<T, V> {
    /// # Safety
    /// A `V` lies at this offset of a `T`, as the function shows.
    pub(crate) const unsafe fn new(offset: usize, _: fn(&T) -> &V) -> Field<T, V> {
        Field { offset, kind: PhantomData }
    }
}

/// `field!(Reader, weaklist)`: where a field lies, with the types of both.
macro_rules! field {
    ($kind:ty, $($field:ident).+) => {
        // SAFETY: the function shows the field whose offset it is.
        unsafe { $crate::capi::class::Field::new(std::mem::offset_of!($kind, $($field).+), |it: &$kind| &it.$($field).+) }
    };
}
pub(crate) use field;

/// A class that is being built.
pub(crate) struct ClassSpec<'py, T> {
    name: &'static CStr,
    flags: c_ulong,
    methods: Vec<Definition>,
    attributes: Vec<ffi::PyGetSetDef>,
    members: Vec<ffi::PyMemberDef>,
    slots: Vec<ffi::PyType_Slot>,
    bases: Option<Bound<'py, PyTuple>>,
    kind: PhantomData<fn(&T)>,
}

impl<'py, T: Native> ClassSpec<'py, T> {
    /// A class of this full name, which Python code can neither instantiate nor derive from.
    pub(crate) fn new(name: &'static CStr) -> ClassSpec<'py, T> {
        let collected = if T::COLLECTED { ffi::Py_TPFLAGS_HAVE_GC } else { 0 };
        ClassSpec {
            name,
            flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION | collected,
            methods: Vec::new(),
            attributes: Vec::new(),
            members: Vec::new(),
            slots: Vec::new(),
            bases: None,
            kind: PhantomData,
        }
    }

    /// Lets Python code derive from the class and make instances, whose fields are zeroed memory at first. They are
    /// made as the base class makes its own.
    ///
    /// # Safety
    /// Zeroed memory is a valid `T`.
    pub(crate) unsafe fn derivable(mut self) -> Self {
        self.flags = (self.flags & !ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION) | ffi::Py_TPFLAGS_BASETYPE;
        self
    }

    /// As [`derivable`](ClassSpec::derivable), for a class whose `__new__` takes any arguments and leaves them to
    /// `__init__`.
    ///
    /// # Safety
    /// Zeroed memory is a valid `T`.
    pub(crate) unsafe fn base_class(self) -> Self {
        // SAFETY: the caller's contract.
        let mut spec = unsafe { self.derivable() };
        let new: ffi::newfunc = ffi::PyType_GenericNew;
        spec.slots.push(ffi::PyType_Slot { slot: ffi::Py_tp_new, pfunc: new as *mut c_void });
        spec
    }

    /// Lets Python code derive from the class and make instances, which begin with the default fields. Arguments are
    /// accepted, and left to the `__init__` of a subclass.
    pub(crate) fn with_default_fields(mut self) -> Self
    where
        T: Default,
    {
        self.flags = (self.flags & !ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION) | ffi::Py_TPFLAGS_BASETYPE;
        let new: ffi::newfunc = native::new_default::<T>;
        self.slots.push(ffi::PyType_Slot { slot: ffi::Py_tp_new, pfunc: new as *mut c_void });
        self
    }

    /// An attribute that holds an object, as one of `__slots__` does: the interpreter itself traverses, clears and
    /// releases it, if the class inherits these functions from its Python base class.
    pub(crate) fn object_member(self, name: &'static CStr, place: Field<T, Slot>) -> Self {
        self.member(name, ffi::Py_T_OBJECT_EX, 0, place.offset)
    }

    pub(crate) fn methods(mut self, table: &[Method<T>]) -> Self {
        self.methods.extend(table.iter().map(Method::definition));
        self
    }

    pub(crate) fn attributes(mut self, table: &[Attribute<T>]) -> Self {
        self.attributes.extend(table.iter().map(|row| ffi::PyGetSetDef {
            name: row.name.as_ptr(),
            get: Some(row.get),
            set: row.set,
            doc: row.doc.map_or(std::ptr::null(), CStr::as_ptr),
            closure: std::ptr::null_mut(),
        }));
        self
    }

    pub(crate) fn slots(mut self, table: &[TypeSlot<T>]) -> Self {
        self.slots.extend(table.iter().map(|row| ffi::PyType_Slot { slot: row.number, pfunc: row.function }));
        self
    }

    /// The text for `help()`.
    pub(crate) fn doc(mut self, text: &'static CStr) -> Self {
        self.slots.push(ffi::PyType_Slot { slot: ffi::Py_tp_doc, pfunc: text.as_ptr().cast_mut().cast() });
        self
    }

    /// Instances can be referred to weakly.
    pub(crate) fn weaklist(self, place: Field<T, WeakList>) -> Self {
        self.member(c"__weaklistoffset__", ffi::Py_T_PYSSIZET, ffi::Py_READONLY, place.offset)
    }

    /// Instances have a `__dict__`. [`Attribute::dict`] shows it.
    pub(crate) fn dict(self, place: Field<T, Slot>) -> Self {
        self.member(c"__dictoffset__", ffi::Py_T_PYSSIZET, ffi::Py_READONLY, place.offset)
    }

    /// Instances are called by the function in this field. They are functions, which bind as methods: the interpreter
    /// makes no bound method for a call, and knows that of an immutable class in advance.
    pub(super) fn vectorcall(mut self, place: Field<T, ffi::vectorcallfunc>) -> Self {
        self.flags |= ffi::Py_TPFLAGS_METHOD_DESCRIPTOR
            | ffi::Py_TPFLAGS_HAVE_VECTORCALL
            | ffi::Py_TPFLAGS_IMMUTABLETYPE;
        let call: ffi::ternaryfunc = ffi::PyVectorcall_Call;
        self.slots.push(ffi::PyType_Slot { slot: ffi::Py_tp_call, pfunc: call as *mut c_void });
        self.member(c"__vectorcalloffset__", ffi::Py_T_PYSSIZET, ffi::Py_READONLY, place.offset)
    }

    fn member(mut self, name: &'static CStr, type_code: c_int, flags: c_int, field: usize) -> Self {
        let offset = (T::offset() + field) as ffi::Py_ssize_t;
        self.members.push(ffi::PyMemberDef {
            name: name.as_ptr(),
            type_code,
            offset,
            flags,
            doc: std::ptr::null(),
        });
        self
    }

    /// The Python classes that the class is derived from. [`Native::offset`] must be where the fields of the largest
    /// one end.
    pub(crate) fn bases(mut self, bases: Bound<'py, PyTuple>) -> Self {
        self.bases = Some(bases);
        self
    }

    /// Makes the class, which lives as long as the process.
    pub(crate) fn build(mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.attributes.push(ffi::PyGetSetDef::default());
        self.members.push(ffi::PyMemberDef::default());
        let tables = [
            (ffi::Py_tp_getset, self.attributes.leak().as_mut_ptr().cast::<c_void>()),
            (ffi::Py_tp_members, self.members.leak().as_mut_ptr().cast()),
        ];
        let mut slots = self.slots;
        slots.extend(tables.map(|(slot, pfunc)| ffi::PyType_Slot { slot, pfunc }));
        slots.push(ffi::PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() });
        let mut spec = ffi::PyType_Spec {
            name: self.name.as_ptr(),
            basicsize: (T::offset() + size_of::<T>()) as c_int,
            itemsize: 0,
            flags: self.flags as u32,
            slots: slots.as_mut_ptr(),
        };
        let bases = self.bases.as_ref().map_or(std::ptr::null_mut(), |bases| bases.as_ptr());
        // SAFETY: every table is leaked and ends with its sentinel; the slot functions have the signatures that their
        // numbers ask for, which the constructors of `TypeSlot` ensure. The class is this `T`'s own, and its
        // instances have room for one behind `offset`.
        let class = unsafe {
            let class = Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpecWithBases(&mut spec, bases))?;
            let class = class.cast_into_unchecked::<PyType>();
            T::class().set(&class);
            class
        };
        function::define(&class, self.methods)?;
        if self.flags & ffi::Py_TPFLAGS_IMMUTABLETYPE == 0 {
            // The interpreter's errors then name the class as they name a class of Python: without its module.
            let name = class.name()?;
            class.setattr(Fallible("__name__"), name)?;
        }
        Ok(class.into_any())
    }
}

/// Adds methods to the class of a `T`, or to a subclass of it. A pyo3 class gets the methods that are called per
/// callback this way. The methods of a native class are added again to the Python class that is derived from it,
/// because the interpreter finds them fastest there.
pub(crate) fn add_methods<T: Native>(class: &Bound<'_, PyType>, table: &[Method<T>]) -> PyResult<()> {
    let native = T::class().as_ptr();
    // SAFETY: two live types; null before the native class is made.
    if native.is_null() || unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), native) } == 0 {
        return Err(exception::<pyo3::exceptions::PyTypeError>("methods of a native class need its fields"));
    }
    function::define(class, table.iter().map(Method::definition))
}
