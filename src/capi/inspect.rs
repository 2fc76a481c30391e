//! What can be asked of a Python object, without `unsafe` at the caller.

use std::ffi::{CStr, c_long};

use pyo3::ffi;

use super::error::Raised;
use super::exceptions::Exception;
use super::object::{Borrowed, Ref};
pub(crate) use super::raised::{clear_error, is_error_set};
use super::shared::list_item;

/// Methods that are one call of the C API each, by the kind of their result. They need live objects and nothing else.
macro_rules! methods {
    (checks { $($(#[$doc:meta])* $name:ident = $function:ident;)* }) => {
        impl Ref {
            $(
                $(#[$doc])*
                #[inline(always)]
                pub(crate) fn $name(&self) -> bool {
                    // SAFETY: a live object, whose type is looked at.
                    unsafe { ffi::$function(self.as_ptr()) != 0 }
                }
            )*
        }
    };
    (questions { $($(#[$doc:meta])* $name:ident($($argument:ident),*) = $function:ident($($more:expr)?);)* }) => {
        impl Ref {
            $(
                $(#[$doc])*
                #[inline(always)]
                pub(crate) fn $name(&self $(, $argument: &Ref)*) -> Result<bool, Raised> {
                    // SAFETY: live objects; -1 with an error set means failure.
                    match unsafe { ffi::$function(self.as_ptr() $(, $argument.as_ptr())* $(, $more)?) } {
                        -1 => Err(Raised),
                        truth => Ok(truth != 0),
                    }
                }
            )*
        }
    };
    (objects { $($(#[$doc:meta])* $name:ident($($argument:ident),*) = $function:ident;)* }) => {
        impl Ref {
            $(
                $(#[$doc])*
                #[inline(always)]
                pub(crate) fn $name(&self $(, $argument: &Ref)*) -> Result<Ref, Raised> {
                    // SAFETY: live objects; an owned reference or null with an error.
                    unsafe { Ref::from_owned(ffi::$function(self.as_ptr() $(, $argument.as_ptr())*)) }.ok_or(Raised)
                }
            )*
        }
    };
}

methods! { checks {
    /// Is it `bytes` or of a subclass?
    is_bytes = PyBytes_Check;
    /// Is it exactly `bytes`?
    is_exact_bytes = PyBytes_CheckExact;
    /// Is it a `bytearray` or of a subclass?
    is_bytearray = PyByteArray_Check;
    /// Is it a `memoryview`?
    is_memoryview = PyMemoryView_Check;
    /// Is it exactly a `str`?
    is_exact_str = PyUnicode_CheckExact;
    /// Is it exactly an `int`?
    is_exact_int = PyLong_CheckExact;
    /// Is it exactly a `tuple`?
    is_exact_tuple = PyTuple_CheckExact;
    /// Is it exactly a `list`?
    is_exact_list = PyList_CheckExact;
    /// Is it an exception?
    is_exception = PyExceptionInstance_Check;
    /// Is it a class of exceptions?
    is_exception_class = PyExceptionClass_Check;
    /// Is it a traceback?
    is_traceback = PyTraceBack_Check;
} }

methods! { questions {
    /// `bool(self)`.
    is_true() = PyObject_IsTrue();
    /// `isinstance(self, class)`.
    is_instance(class) = PyObject_IsInstance();
    /// `self == other`.
    equals(other) = PyObject_RichCompareBool(ffi::Py_EQ);
} }

methods! { objects {
    /// `getattr(self, name)`.
    getattr(name) = PyObject_GetAttr;
    /// `repr(self)`.
    repr() = PyObject_Repr;
    /// `self + other`.
    plus(other) = PyNumber_Add;
    /// `bytes(self)` of an object with a buffer.
    to_bytes() = PyBytes_FromObject;
    /// `tuple(self)`.
    to_tuple() = PySequence_Tuple;
    /// `list(self)`.
    to_list() = PySequence_List;
} }

impl Ref {
    /// Are they one object?
    #[inline(always)]
    pub(crate) fn is(&self, other: &Ref) -> bool {
        self.as_ptr() == other.as_ptr()
    }

    /// Is it `False` itself?
    #[inline(always)]
    pub(crate) fn is_false(&self) -> bool {
        // SAFETY: comparing with the address of a static of the interpreter.
        self.as_ptr() == unsafe { ffi::Py_False() }
    }

    /// Is it `None`?
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        // SAFETY: the address of a static of the interpreter.
        self.as_ptr() == unsafe { ffi::Py_None() }
    }

    /// How many references there are. [`Ref::is_unique`] is the usual question. On a free-threaded build the number is
    /// exact only while the world is stopped.
    #[inline(always)]
    pub(crate) fn refcount(&self) -> isize {
        // SAFETY: a live object.
        unsafe { ffi::Py_REFCNT(self.as_ptr()) }
    }

    /// Is this the only reference?
    #[inline(always)]
    pub(crate) fn is_unique(&self) -> bool {
        self.refcount() == 1
    }

    // -- types ---------------------------------------------------------------------------------------------------

    /// The type of the object.
    #[inline(always)]
    pub(crate) fn kind(&self) -> *mut ffi::PyTypeObject {
        // SAFETY: a live object.
        unsafe { ffi::Py_TYPE(self.as_ptr()) }
    }

    /// `type(self) is class`.
    #[inline(always)]
    pub(crate) fn is_exactly(&self, class: &Ref) -> bool {
        self.kind().cast() == class.as_ptr()
    }

    /// Is it an instance of `class`, or of a subclass?
    pub(crate) fn is_instance_of(&self, class: &Ref) -> bool {
        // SAFETY: two live types.
        unsafe { ffi::PyType_IsSubtype(self.kind(), class.as_ptr().cast()) != 0 }
    }

    /// Was its class written in C, and can no Python code change it? So an access to an attribute runs no Python code.
    pub(crate) fn has_immutable_class(&self) -> bool {
        // SAFETY: the type of a live object.
        unsafe { is_immutable(self.kind()) }
    }

    /// The name of its type, as error messages show it.
    pub(crate) fn kind_name(&self) -> String {
        // SAFETY: the type of a live object has a name, which lives as long as the type.
        unsafe { CStr::from_ptr((*self.kind()).tp_name) }.to_string_lossy().into_owned()
    }

    // -- attributes ----------------------------------------------------------------------------------------------

    /// `setattr(self, name, value)`.
    pub(crate) fn setattr(&self, name: &Ref, value: &Ref) -> Result<(), Raised> {
        // SAFETY: live objects; -1 with an error set means failure.
        status(unsafe { ffi::PyObject_SetAttr(self.as_ptr(), name.as_ptr(), value.as_ptr()) })
    }

    /// `self.__set__(object, value)`, where `self` is a descriptor that was looked up before.
    #[inline(always)]
    pub(crate) fn set_through(&self, object: &Ref, value: &Ref) -> Result<(), Raised> {
        // SAFETY: live objects; the slot's function belongs to the descriptor's type. -1 with an error set means
        // failure.
        unsafe {
            match (*self.kind()).tp_descr_set {
                Some(set) => status(set(self.as_ptr(), object.as_ptr(), value.as_ptr())),
                None => Err(Exception::AttributeError.raise("the attribute cannot be set")),
            }
        }
    }

    /// `hash(self)`.
    pub(crate) fn hash(&self) -> Result<isize, Raised> {
        // SAFETY: a live object; -1 with an error set means failure.
        match unsafe { ffi::PyObject_Hash(self.as_ptr()) } {
            -1 => Err(Raised),
            hash => Ok(hash),
        }
    }

    // -- numbers -------------------------------------------------------------------------------------------------

    /// The value of an instance of exactly `float`.
    #[inline(always)]
    pub(crate) fn exact_float(&self) -> Option<f64> {
        // SAFETY: a live object, whose value is read only if it is a float.
        unsafe {
            (ffi::PyFloat_CheckExact(self.as_ptr()) != 0).then(|| ffi::PyFloat_AS_DOUBLE(self.as_ptr()))
        }
    }

    /// `float(self)`, for an object that has a `__float__` or an `__index__`.
    #[inline(always)]
    pub(crate) fn to_float(&self) -> Result<f64, Raised> {
        // SAFETY: a live object; -1 with an error set means failure.
        let value = unsafe { ffi::PyFloat_AsDouble(self.as_ptr()) };
        if value == -1.0 && is_error_set() { Err(Raised) } else { Ok(value) }
    }

    /// `float(self)`; infinity for an integer that is too large.
    pub(crate) fn to_float_or_infinity(&self) -> Result<f64, Raised> {
        self.to_float().or_else(|raised| {
            if !Exception::OverflowError.is_set() {
                return Err(raised);
            }
            drop(raised.take());
            let zero = integer(0)?;
            // SAFETY: live objects; -1 with an error set means failure.
            match unsafe { ffi::PyObject_RichCompareBool(self.as_ptr(), zero.as_ptr(), ffi::Py_LT) } {
                -1 => Err(Raised),
                0 => Ok(f64::INFINITY),
                _ => Ok(f64::NEG_INFINITY),
            }
        })
    }

    /// The value of an instance of exactly `int` that is small enough.
    #[inline(always)]
    pub(crate) fn exact_int(&self) -> Option<isize> {
        if !self.is_exact_int() {
            return None;
        }
        // SAFETY: an int; -1 with an error set means that it is too large.
        let value = unsafe { ffi::PyLong_AsSsize_t(self.as_ptr()) };
        if value == -1 && is_error_set() {
            clear_error();
            return None;
        }
        Some(value)
    }

    /// The value of an instance of `int`, as near as 64 bits come to it.
    pub(crate) fn saturating_int(&self) -> Option<i64> {
        let mut overflow = 0;
        // SAFETY: a live object, whose value is read only if it is an int.
        let value = unsafe {
            if ffi::PyLong_Check(self.as_ptr()) == 0 {
                return None;
            }
            ffi::PyLong_AsLongLongAndOverflow(self.as_ptr(), &mut overflow)
        };
        Some(match overflow {
            0 => value,
            1.. => i64::MAX,
            _ => i64::MIN,
        })
    }

    /// Has it `__index__`?
    pub(crate) fn is_index(&self) -> bool {
        // SAFETY: a live object.
        unsafe { ffi::PyIndex_Check(self.as_ptr()) != 0 }
    }

    /// `operator.index(self)`, with an OverflowError if it is too large.
    pub(crate) fn to_index(&self) -> Result<isize, Raised> {
        // SAFETY: a live object; -1 with an error set means failure.
        let value = unsafe { ffi::PyNumber_AsSsize_t(self.as_ptr(), ffi::PyExc_OverflowError) };
        if value == -1 && is_error_set() { Err(Raised) } else { Ok(value) }
    }

    /// As [`to_index`](Ref::to_index), with the error that an argument of C's type `Py_ssize_t` raises.
    pub(crate) fn to_ssize(&self) -> Result<isize, Raised> {
        self.to_integer(ffi::PyLong_AsSsize_t)
    }

    /// As [`to_index`](Ref::to_index), with the error that an argument of C's type `long` raises.
    pub(crate) fn to_long(&self) -> Result<c_long, Raised> {
        self.to_integer(ffi::PyLong_AsLong)
    }

    fn to_integer<T: PartialEq + From<i8>>(
        &self,
        convert: unsafe extern "C" fn(*mut ffi::PyObject) -> T,
    ) -> Result<T, Raised> {
        // SAFETY: a live object; an owned reference to an int, or null with an error.
        let number = unsafe { Ref::from_owned(ffi::PyNumber_Index(self.as_ptr())) }.ok_or(Raised)?;
        // SAFETY: an int; -1 with an error set means failure.
        let value = unsafe { convert(number.as_ptr()) };
        if value == T::from(-1) && is_error_set() { Err(Raised) } else { Ok(value) }
    }

    // -- content -------------------------------------------------------------------------------------------------

    /// The content of an instance of exactly `bytes`.
    #[inline(always)]
    pub(crate) fn exact_bytes(&self) -> Option<&[u8]> {
        if self.is_exact_bytes() { self.bytes() } else { None }
    }

    /// The content of an instance of `bytes` or of a subclass.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: bytes, whose content does not change while there is another reference to them:
        // `capi::buffer::RawBytes` writes only into objects to which it has the only reference.
        self.is_bytes().then(|| unsafe { super::buffer::bytes_slice(self.as_ptr()) })
    }

    /// Is it a `bytearray` or a `memoryview`?
    pub(crate) fn is_bytes_like(&self) -> bool {
        self.is_bytearray() || self.is_memoryview()
    }

    /// The text of an instance of exactly `str`; `None` if it has surrogates.
    pub(crate) fn exact_text(&self) -> Option<&str> {
        if self.is_exact_str() { self.text() } else { None }
    }

    /// The text of a string; `None` if it has surrogates or is no string.
    pub(crate) fn text(&self) -> Option<&str> {
        let mut size = 0;
        // SAFETY: a live object, which is read only if it is a string. Its UTF-8 form is kept in it and lives as long
        // as it does; null, with an error set, if it has none.
        unsafe {
            if ffi::PyUnicode_Check(self.as_ptr()) == 0 {
                return None;
            }
            let data = ffi::PyUnicode_AsUTF8AndSize(self.as_ptr(), &mut size);
            if data.is_null() {
                clear_error();
                return None;
            }
            Some(std::str::from_utf8_unchecked(std::slice::from_raw_parts(data.cast::<u8>(), size as usize)))
        }
    }

    /// The items of an instance of `tuple` or of a subclass.
    #[inline(always)]
    pub(crate) fn tuple_items(&self) -> Option<&[Borrowed<'_>]> {
        // SAFETY: a live object, whose items are read only if it is a tuple. `Borrowed` is transparent over a pointer,
        // a tuple's places hold live objects, and they do not change.
        unsafe {
            if ffi::PyTuple_Check(self.as_ptr()) == 0 {
                return None;
            }
            let size = ffi::PyTuple_GET_SIZE(self.as_ptr()) as usize;
            if size == 0 {
                return Some(&[]);
            }
            let first = &raw const (*self.as_ptr().cast::<ffi::PyTupleObject>()).ob_item;
            Some(std::slice::from_raw_parts(first.cast::<Borrowed<'_>>(), size))
        }
    }

    /// The items of an instance of exactly `tuple`.
    #[inline(always)]
    pub(crate) fn exact_tuple_items(&self) -> Option<&[Borrowed<'_>]> {
        if self.is_exact_tuple() { self.tuple_items() } else { None }
    }

    /// The item of a list at this place, or an error if the list has become shorter.
    pub(crate) fn list_item(&self, index: usize) -> Result<Ref, Raised> {
        list_item(self, index)
    }

    /// The length of a list, 0 of anything else.
    pub(crate) fn list_len(&self) -> usize {
        // SAFETY: a live object, whose length is read only if it is a list.
        unsafe {
            if ffi::PyList_Check(self.as_ptr()) == 0 { 0 } else { ffi::PyList_Size(self.as_ptr()) as usize }
        }
    }

    /// Passes the error that is set to `sys.unraisablehook`, with this object as its source.
    #[cold]
    pub(crate) fn write_unraisable(&self) {
        // SAFETY: a live object; with no error set the function does nothing that matters.
        unsafe { ffi::PyErr_WriteUnraisable(self.as_ptr()) }
    }
}

/// `Py_TPFLAGS_IMMUTABLETYPE`; a type that is not on the heap cannot be changed either.
const IMMUTABLE: std::ffi::c_ulong = 1 << 8;

/// # Safety
/// `class` is a live type.
pub(super) unsafe fn is_immutable(class: *mut ffi::PyTypeObject) -> bool {
    // SAFETY: the caller's contract.
    let flags = unsafe { ffi::PyType_GetFlags(class) };
    flags & IMMUTABLE != 0 || flags & ffi::Py_TPFLAGS_HEAPTYPE == 0
}

/// A Python int.
pub(crate) fn integer(value: impl Into<i64>) -> Result<Ref, Raised> {
    // SAFETY: making an int; an owned reference or null with an error.
    unsafe { Ref::from_owned(ffi::PyLong_FromLongLong(value.into())) }.ok_or(Raised)
}

/// `True` or `False`.
#[inline(always)]
pub(crate) fn boolean(value: bool) -> Ref {
    // SAFETY: statics of the interpreter.
    unsafe { Ref::from_borrowed(if value { ffi::Py_True() } else { ffi::Py_False() }) }
}

/// `float(value)`.
#[inline(always)]
pub(crate) fn float(value: f64) -> Result<Ref, Raised> {
    // SAFETY: an owned reference or null with an error.
    unsafe { Ref::from_owned(ffi::PyFloat_FromDouble(value)) }.ok_or(Raised)
}

/// `NotImplemented`.
pub(crate) fn not_implemented() -> Ref {
    // SAFETY: a static of the interpreter.
    unsafe { Ref::from_borrowed(ffi::Py_NotImplemented()) }
}

/// Converts the result of a C function that returns -1 with an error set, and 0 otherwise.
#[inline(always)]
pub(crate) fn status(code: std::ffi::c_int) -> Result<(), Raised> {
    if code < 0 { Err(Raised) } else { Ok(()) }
}
