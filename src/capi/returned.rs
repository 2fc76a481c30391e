//! Turns the results of Rust functions into those of C functions: an object or null, 0 or -1.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;

use super::error::Raised;
use super::fallible::string;
use super::inspect::{boolean, float, integer};
use super::object::{Borrowed, Ref};

/// What a method, a getter or an iterator may return.
pub(crate) trait Returned {
    /// The object, or an error that is set.
    fn into_object(self) -> Result<Ref, Raised>;

    /// What C returns: an owned reference, or null with an error set.
    #[inline(always)]
    fn into_returned(self) -> *mut ffi::PyObject
    where
        Self: Sized,
    {
        match self.into_object() {
            Ok(object) => object.into_ptr(),
            Err(Raised) => std::ptr::null_mut(),
        }
    }
}

macro_rules! returned {
    ($($kind:ty, |$value:ident| $made:expr;)*) => {
        $(impl Returned for $kind {
            #[inline(always)]
            fn into_object(self) -> Result<Ref, Raised> {
                let $value = self;
                $made
            }
        })*
    };
}

returned! {
    Ref, |value| Ok(value);
    Borrowed<'_>, |value| Ok(value.to_owned());
    Bound<'_, PyAny>, |value| Ok(Ref::from(value));
    (), |_nothing| Ok(Ref::none());
    bool, |value| Ok(boolean(value));
    f64, |value| float(value);
    i32, |value| integer(value);
    u32, |value| integer(value);
    i64, |value| integer(value);
    usize, |value| integer(value as i64);
    &str, |value| string(value);
    String, |value| string(&value);
}

/// `None` becomes Python's `None`.
impl<V: Returned> Returned for Option<V> {
    #[inline(always)]
    fn into_object(self) -> Result<Ref, Raised> {
        self.map_or_else(|| Ok(Ref::none()), V::into_object)
    }
}

impl<V: Returned, E: Into<Raised>> Returned for Result<V, E> {
    #[inline(always)]
    fn into_object(self) -> Result<Ref, Raised> {
        self.map_err(E::into).and_then(V::into_object)
    }
}

/// What `__hash__` may return.
pub(crate) trait Hash {
    /// What C returns: -1 with an error set, and any other number for a hash.
    fn into_hash(self) -> ffi::Py_hash_t;
}

impl Hash for Result<isize, Raised> {
    fn into_hash(self) -> ffi::Py_hash_t {
        match self {
            Ok(-1) => -2,
            Ok(hash) => hash,
            Err(Raised) => -1,
        }
    }
}

/// What a setter or `__init__` may return.
pub(crate) trait Status {
    /// What C returns: 0, or -1 with an error set.
    fn into_status(self) -> c_int;
}

impl Status for () {
    #[inline(always)]
    fn into_status(self) -> c_int {
        0
    }
}

impl<E: Into<Raised>> Status for Result<(), E> {
    #[inline(always)]
    fn into_status(self) -> c_int {
        match self.map_err(E::into) {
            Ok(()) => 0,
            Err(Raised) => -1,
        }
    }
}
