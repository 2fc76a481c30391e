//! Makes Python objects of Rust values, and raises `MemoryError` when the interpreter has no memory for them.
//!
//! pyo3's own constructors and conversions (`PyString::new`, a `&str` as the name of an attribute, a number as a
//! result) panic when the interpreter has no memory for the object. pyo3 makes the message of an error only when the
//! error is raised, outside of the last frame that catches a panic, and a panic there ends the process. The functions
//! here do not panic. `clippy.toml` forbids the constructors for which there is a function here; exceptions are made
//! by [`exception`](super::error::exception).

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::object::Ref;
use super::raised::{Raised, no_memory, unless_raised};

/// A value on its way to Python, as the name of an attribute, an argument, an item or a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fallible<T>(pub(crate) T);

macro_rules! fallible {
    ($($value:ty => $kind:ident, |$it:ident| $make:expr;)*) => {
        $(impl<'py> IntoPyObject<'py> for Fallible<$value> {
            type Target = $kind;
            type Output = Bound<'py, $kind>;
            type Error = PyErr;

            fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, $kind>> {
                let $it = self.0;
                // SAFETY: each of the functions below makes an object of the kind that stands beside it, or gives
                // null with an error set.
                unsafe { Ok(Bound::from_owned_ptr_or_err(py, $make)?.cast_into_unchecked()) }
            }
        })*
    };
}

fallible! {
    &str => PyString, |it| ffi::PyUnicode_FromStringAndSize(it.as_ptr().cast(), it.len() as ffi::Py_ssize_t);
    String => PyString, |it| ffi::PyUnicode_FromStringAndSize(it.as_ptr().cast(), it.len() as ffi::Py_ssize_t);
    &[u8] => PyBytes, |it| ffi::PyBytes_FromStringAndSize(it.as_ptr().cast(), it.len() as ffi::Py_ssize_t);
    i32 => PyInt, |it| ffi::PyLong_FromLongLong(it.into());
    u16 => PyInt, |it| ffi::PyLong_FromLongLong(it.into());
    u32 => PyInt, |it| ffi::PyLong_FromLongLong(it.into());
    u64 => PyInt, |it| ffi::PyLong_FromUnsignedLongLong(it);
    usize => PyInt, |it| ffi::PyLong_FromSize_t(it);
    f64 => PyFloat, |it| ffi::PyFloat_FromDouble(it);
}

/// A string.
pub(crate) fn string(text: &str) -> Result<Ref, Raised> {
    let size = text.len() as ffi::Py_ssize_t;
    // SAFETY: makes a string of valid UTF-8; an owned reference or null with an error.
    unsafe { Ref::from_owned(ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), size)) }.ok_or(Raised)
}

/// As [`string`], for the text of a report. If that fails it is `None`, because a report without the text is better
/// than none.
#[cold]
pub(crate) fn string_or_none(text: &str) -> Ref {
    unless_raised(string(text)).unwrap_or_else(Ref::none)
}

/// The one string of this content that the interpreter keeps for names.
pub(crate) fn interned(name: &str) -> Result<Ref, Raised> {
    let mut object = string(name)?.into_ptr();
    // SAFETY: an owned reference to a string goes in, and one to the interned string, which may be the same, comes out.
    unsafe {
        ffi::PyUnicode_InternInPlace(&mut object);
        Ref::from_owned(object).ok_or(Raised)
    }
}

/// A tuple of these objects.
pub(crate) fn tuple(
    items: impl IntoIterator<Item = Ref, IntoIter: ExactSizeIterator>,
) -> Result<Ref, Raised> {
    let items = items.into_iter();
    let size = items.len() as ffi::Py_ssize_t;
    // SAFETY: a fresh tuple, or null with an error; each of its places takes over one reference.
    unsafe {
        let tuple = Ref::from_owned(ffi::PyTuple_New(size)).ok_or(Raised)?;
        for (place, item) in (0..size).zip(items) {
            ffi::PyTuple_SET_ITEM(tuple.as_ptr(), place, item.into_ptr());
        }
        Ok(tuple)
    }
}

/// As [`tuple`], with pyo3's types.
pub(crate) fn py_tuple<'py>(
    py: Python<'py>,
    items: impl IntoIterator<Item = Bound<'py, PyAny>, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyTuple>> {
    let tuple = tuple(items.into_iter().map(Ref::from))?;
    // SAFETY: just made as a tuple.
    Ok(unsafe { tuple.bind(py).cast_into_unchecked() })
}

/// An empty dict.
pub(crate) fn dict(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: an owned reference to a dict or null with an error.
    unsafe { Ok(Bound::from_owned_ptr_or_err(py, ffi::PyDict_New())?.cast_into_unchecked()) }
}

/// A list of these objects.
pub(crate) fn list<'py>(
    py: Python<'py>,
    items: impl IntoIterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    try_list(py, items.into_iter().map(Ok))
}

/// A list of these objects, or the first error.
pub(crate) fn try_list<'py>(
    py: Python<'py>,
    items: impl IntoIterator<Item = PyResult<Bound<'py, PyAny>>>,
) -> PyResult<Bound<'py, PyList>> {
    // SAFETY: an owned reference to a list or null with an error.
    let list: Bound<'_, PyList> =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyList_New(0))?.cast_into_unchecked() };
    for item in items {
        list.append(item?)?;
    }
    Ok(list)
}

/// Asks for the memory of the next operations of the runtime. Each takes some small records (a task, a channel, a timer, a
/// place in a queue), and may start a thread of the pool, and these allocations cannot fail one by one.
///
/// # Errors
/// Raises MemoryError.
pub(crate) fn reserve_operation() -> Result<(), Raised> {
    /// How many operations may begin without asking. Relaxed: a race makes it ask too early or too late.
    static LEFT: AtomicU32 = AtomicU32::new(0);
    match LEFT.load(Relaxed).checked_sub(1) {
        Some(left) => LEFT.store(left, Relaxed),
        None => {
            ask_for_operations()?;
            LEFT.store(OPERATIONS, Relaxed);
        }
    }
    Ok(())
}

/// So many operations are asked for at once, because asking takes two system calls.
const OPERATIONS: u32 = 128;

/// Asks the system itself for more than these operations take: a large block from the C library would change how that
/// gets its memory.
#[cold]
fn ask_for_operations() -> Result<(), Raised> {
    const SIZE: usize = 4 << 20;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the system chooses; nobody uses it before it is removed.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), SIZE, access, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err(no_memory());
        }
        libc::munmap(memory, SIZE);
    }
    Ok(())
}

/// A vector of these items, whose number a program chooses, or the first error.
pub(crate) fn collected<T>(
    items: impl IntoIterator<Item = Result<T, Raised>, IntoIter: ExactSizeIterator>,
) -> Result<Vec<T>, Raised> {
    let items = items.into_iter();
    let mut all = Vec::new();
    all.try_reserve_exact(items.len()).map_err(|_| no_memory())?;
    for item in items {
        all.push(item?);
    }
    Ok(all)
}

/// Adds an item to a vector whose length a program or a peer chooses.
pub(crate) fn push<T>(items: &mut Vec<T>, item: T) -> Result<(), Raised> {
    items.try_reserve(1).map_err(|_| no_memory())?;
    items.push(item);
    Ok(())
}
