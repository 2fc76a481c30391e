//! Names of Python modules that others put something else under, and how often the modules have been changed: what is
//! found under a name holds until then.

use std::cell::Cell;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) use self::watching::changes;
use super::error::Raised;
use super::object::Ref;

/// Counts the changes of a module from now on. The dict is kept for ever. False if CPython does not tell of them.
pub(crate) fn watch(dict: &Bound<'_, PyDict>) -> bool {
    watching::watch(dict.clone().unbind())
}

/// A name in the dict of a module.
#[derive(Debug)]
pub(crate) struct ModuleName {
    dict: Ref,
    name: Ref,
    watched: bool,
    /// What was under it after so many changes, borrowed from the dict.
    found: Cell<*mut ffi::PyObject>,
    seen: Cell<u64>,
}

impl ModuleName {
    /// `name` is interned.
    pub(crate) fn new(dict: &Bound<'_, PyDict>, name: Ref) -> ModuleName {
        let watched = watch(dict);
        let dict = dict.clone().into_any().into();
        ModuleName { dict, name, watched, found: Cell::new(null_mut()), seen: Cell::new(0) }
    }

    /// What stands under the name now.
    #[inline(always)]
    pub(crate) fn get(&self) -> Result<Ref, Raised> {
        if self.seen.get() == changes() {
            // SAFETY: null, or the dict has held it since it was found: CPython tells of a change before it makes it.
            if let Some(found) = unsafe { Ref::from_nullable(self.found.get()) } {
                return Ok(found);
            }
        }
        self.look()
    }

    #[cold]
    fn look(&self) -> Result<Ref, Raised> {
        let found = lookup(&self.dict, &self.name)?;
        if self.watched {
            self.seen.set(changes());
            self.found.set(found.as_ptr());
        }
        Ok(found)
    }
}

/// What stands under an interned name in the dict of a module, or a NameError.
pub(crate) fn lookup(dict: &Ref, name: &Ref) -> Result<Ref, Raised> {
    // SAFETY: a module's dict and an interned string, whose comparison runs no Python code; the result is borrowed and
    // made ours at once.
    unsafe {
        let found = ffi::PyDict_GetItemWithError(dict.as_ptr(), name.as_ptr());
        if let Some(found) = Ref::from_nullable(found) {
            return Ok(found);
        }
        if ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_SetObject(ffi::PyExc_NameError, name.as_ptr());
        }
        Err(Raised)
    }
}

/// CPython tells us of each change.
#[cfg(Py_3_12)]
mod watching {
    use std::ffi::c_int;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Py, PyDict, Raised, ffi};

    static CHANGES: AtomicU64 = AtomicU64::new(0);
    static WATCHER: OnceLock<c_int> = OnceLock::new();

    unsafe extern "C" {
        /// Public and documented C API that pyo3-ffi does not declare.
        fn PyDict_AddWatcher(
            told: unsafe extern "C" fn(
                c_int,
                *mut ffi::PyObject,
                *mut ffi::PyObject,
                *mut ffi::PyObject,
            ) -> c_int,
        ) -> c_int;
    }

    unsafe extern "C" fn count(
        _: c_int,
        _: *mut ffi::PyObject,
        _: *mut ffi::PyObject,
        _: *mut ffi::PyObject,
    ) -> c_int {
        // Relaxed: changed and read with the GIL held.
        CHANGES.fetch_add(1, Ordering::Relaxed);
        0
    }

    /// How often a module that is watched has been changed, to be compared with an earlier answer.
    #[inline(always)]
    pub(crate) fn changes() -> u64 {
        // Relaxed: changed and read with the GIL held.
        CHANGES.load(Ordering::Relaxed)
    }

    /// There are few watchers in a process, and there may be none left.
    pub(super) fn watch(dict: Py<PyDict>) -> bool {
        // SAFETY: the GIL is held, and the function lives as long as the process.
        let watcher = *WATCHER.get_or_init(|| unsafe { PyDict_AddWatcher(count) });
        // SAFETY: a live dict and a watcher of ours, or none.
        let done = watcher >= 0 && unsafe { ffi::PyDict_Watch(watcher, dict.as_ptr()) } == 0;
        if done {
            std::mem::forget(dict);
        } else {
            drop(Raised.take());
        }
        done
    }
}

/// Each dict has a number, which no dict had before it was changed.
#[cfg(not(Py_3_12))]
mod watching {
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use super::{Py, PyDict, ffi};

    /// As many modules as are watched.
    static DICTS: [AtomicPtr<ffi::PyDictObject>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];

    /// How things stand with the modules that are watched, to be compared with an earlier answer: the numbers only grow,
    /// and so does their sum.
    #[inline(always)]
    pub(crate) fn changes() -> u64 {
        let mut sum = 0_u64;
        for dict in &DICTS {
            // Relaxed: set at import, under the GIL.
            let dict = dict.load(Ordering::Relaxed);
            if !dict.is_null() {
                // SAFETY: the dict is kept for ever, and read with the GIL held.
                sum = sum.wrapping_add(unsafe { (*dict).ma_version_tag });
            }
        }
        sum
    }

    pub(super) fn watch(dict: Py<PyDict>) -> bool {
        let dict: *mut ffi::PyDictObject = dict.into_ptr().cast();
        for place in &DICTS {
            // Relaxed: at import, under the GIL.
            let there = place.load(Ordering::Relaxed);
            if there.is_null() || there == dict {
                // Relaxed: as above.
                place.store(dict, Ordering::Relaxed);
                return true;
            }
        }
        false
    }
}
