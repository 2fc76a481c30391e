//! The arguments of a `METH_FASTCALL | METH_KEYWORDS` function.

use pyo3::ffi;

use super::error::{Raised, raise_message};
use super::sockaddr::str_of;

/// Positional and keyword arguments as CPython hands them over: borrowed, for the time of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args {
    values: *const *mut ffi::PyObject,
    positional: usize,
    names: *mut ffi::PyObject,
}

impl Args {
    /// # Safety
    /// The three values are those of a running fastcall with keywords.
    #[inline(always)]
    pub(crate) unsafe fn new(
        values: *const *mut ffi::PyObject,
        positional: ffi::Py_ssize_t,
        names: *mut ffi::PyObject,
    ) -> Args {
        Args { values, positional: positional as usize, names }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.positional
    }

    /// Positional argument `index`, which must be less than [`Args::len`].
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> *mut ffi::PyObject {
        debug_assert!(index < self.positional);
        // SAFETY: CPython passes `positional` values, then one per keyword.
        unsafe { *self.values.add(index) }
    }

    /// The positional arguments from `first` on.
    #[inline(always)]
    pub(crate) fn rest(&self, first: usize) -> &[*mut ffi::PyObject] {
        if self.positional <= first {
            return &[];
        }
        // SAFETY: as in `at`; the array lives as long as the call that `self` belongs to.
        unsafe { std::slice::from_raw_parts(self.values.add(first), self.positional - first) }
    }

    #[inline(always)]
    pub(crate) fn keywords(&self) -> usize {
        // SAFETY: a tuple of names or null.
        if self.names.is_null() { 0 } else { unsafe { ffi::PyTuple_GET_SIZE(self.names) as usize } }
    }

    /// The tuple of keyword names, or null.
    pub(crate) fn names(&self) -> *mut ffi::PyObject {
        self.names
    }

    /// The name of keyword `index`, borrowed.
    #[inline(always)]
    pub(crate) fn keyword_name(&self, index: usize) -> *mut ffi::PyObject {
        // SAFETY: `index` is below the tuple's size.
        unsafe { ffi::PyTuple_GET_ITEM(self.names, index as ffi::Py_ssize_t) }
    }

    /// The value of keyword `index`.
    #[inline(always)]
    pub(crate) fn keyword_value(&self, index: usize) -> *mut ffi::PyObject {
        // SAFETY: keyword values follow the positional ones.
        unsafe { *self.values.add(self.positional + index) }
    }

    /// The only keyword that `call_soon` and its kin know: `context`. Null if absent or `None`.
    #[inline(always)]
    pub(crate) fn context(&self, function: &str) -> Result<*mut ffi::PyObject, Raised> {
        if self.names.is_null() {
            return Ok(std::ptr::null_mut());
        }
        self.named_context(function)
    }

    fn named_context(&self, function: &str) -> Result<*mut ffi::PyObject, Raised> {
        let wanted = super::imports::imports().context.as_ptr();
        let mut found = std::ptr::null_mut();
        for index in 0..self.keywords() {
            // SAFETY: `index` is below the tuple's size; names are strings.
            let name = unsafe { ffi::PyTuple_GET_ITEM(self.names, index as ffi::Py_ssize_t) };
            // SAFETY: two live strings.
            if name != wanted && unsafe { ffi::PyUnicode_Compare(name, wanted) } != 0 {
                raise_message(
                    // SAFETY: reading a static of the interpreter.
                    unsafe { ffi::PyExc_TypeError },
                    &match str_of(name) {
                        Some(text) => format!("{function}() got an unexpected keyword argument '{text}'"),
                        None => format!("{function}() got an unexpected keyword argument"),
                    },
                );
                return Err(Raised);
            }
            found = self.keyword_value(index);
        }
        // SAFETY: comparing with the address of `None`.
        Ok(if found == unsafe { ffi::Py_None() } { std::ptr::null_mut() } else { found })
    }

    /// Fails with Python's kind of error unless there are at least `count` positional arguments.
    #[inline(always)]
    pub(crate) fn at_least(&self, count: usize, function: &str, first_missing: &str) -> Result<(), Raised> {
        if self.positional >= count {
            return Ok(());
        }
        raise_message(
            // SAFETY: reading a static of the interpreter.
            unsafe { ffi::PyExc_TypeError },
            &format!(
                "{function}() missing {} required positional argument: '{first_missing}'",
                count - self.positional
            ),
        );
        Err(Raised)
    }

    /// The only argument of a function that has one parameter, positional or by name.
    #[inline(always)]
    pub(crate) fn one(&self, function: &str, parameter: &str) -> Result<*mut ffi::PyObject, Raised> {
        if self.positional == 1 && self.names.is_null() {
            return Ok(self.at(0));
        }
        self.bind(function, [parameter], 1).map(|[value]| value)
    }

    /// Binds the arguments to a list of parameter names, positional or keyword; missing ones are null.
    #[inline(always)]
    pub(crate) fn bind<const N: usize>(
        &self,
        function: &str,
        parameters: [&str; N],
        required: usize,
    ) -> Result<[*mut ffi::PyObject; N], Raised> {
        if self.positional == N && self.names.is_null() {
            return Ok(std::array::from_fn(|index| self.at(index)));
        }
        self.bind_names(function, parameters, required)
    }

    fn bind_names<const N: usize>(
        &self,
        function: &str,
        parameters: [&str; N],
        required: usize,
    ) -> Result<[*mut ffi::PyObject; N], Raised> {
        let mut bound = [std::ptr::null_mut(); N];
        // SAFETY: reading a static of the interpreter.
        let type_error = unsafe { ffi::PyExc_TypeError };
        if self.positional > N {
            raise_message(
                type_error,
                &format!("{function}() takes {N} positional arguments but {} were given", self.positional),
            );
            return Err(Raised);
        }
        bound[..self.positional].copy_from_slice(self.rest(0));
        for index in 0..self.keywords() {
            // SAFETY: `index` is below the tuple's size.
            let name = unsafe { ffi::PyTuple_GET_ITEM(self.names, index as ffi::Py_ssize_t) };
            let mut size = 0;
            // SAFETY: a live string; the UTF-8 form is cached in it and lives as long as it does.
            let text = unsafe {
                let data = ffi::PyUnicode_AsUTF8AndSize(name, &mut size);
                if data.is_null() {
                    // Surrogates: no parameter has such a name.
                    ffi::PyErr_Clear();
                    raise_message(type_error, &format!("{function}() got an unexpected keyword argument"));
                    return Err(Raised);
                }
                std::str::from_utf8_unchecked(std::slice::from_raw_parts(data.cast::<u8>(), size as usize))
            };
            match parameters.iter().position(|parameter| *parameter == text) {
                Some(place) if bound[place].is_null() => bound[place] = self.keyword_value(index),
                Some(_) => {
                    raise_message(
                        type_error,
                        &format!("{function}() got multiple values for argument '{text}'"),
                    );
                    return Err(Raised);
                }
                None => {
                    raise_message(
                        type_error,
                        &format!("{function}() got an unexpected keyword argument '{text}'"),
                    );
                    return Err(Raised);
                }
            }
        }
        if let Some(missing) = bound[..required].iter().position(|value| value.is_null()) {
            raise_message(
                type_error,
                &format!("{function}() missing required argument: '{}'", parameters[missing]),
            );
            return Err(Raised);
        }
        Ok(bound)
    }
}
