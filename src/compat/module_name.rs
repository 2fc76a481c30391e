//! A name in a Python module that programs put something else under, looked up again only when that may have happened.
//!
//! From 3.12 on CPython reports each change of a watched dict, before it makes the change. So an announced value may not
//! be there yet: code that another watcher of the same dict runs comes in between. Until the announced value is found,
//! nothing is cached. Before 3.12 each dict has a version number, which no dict had before its last change.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) use self::watching::changes;
use crate::capi::fallible::interned;
use crate::capi::{Fallible, Raised, Ref, Slot};

/// A name in the dict of a module.
#[derive(Debug)]
pub(crate) struct ModuleName {
    dict: Ref,
    name: Ref,
    /// CPython reports the changes of this dict.
    watched: Cell<bool>,
    /// What was under the name after `seen` changes. Owned: code that runs while a change is announced may change the
    /// dict once more, against the rules for watchers.
    found: Slot,
    seen: Cell<u64>,
    /// What a change that is announced will put there (null for a deletion); nothing once it has been found there.
    announced: Cell<Option<*mut ffi::PyObject>>,
}

impl ModuleName {
    /// The name is watched for as long as the process lives. Called by the module's initialisation.
    pub(crate) fn watch(py: Python<'_>, module: &str, name: &str) -> PyResult<&'static ModuleName> {
        let dict: Bound<'_, PyDict> = py.import(Fallible(module))?.dict();
        let this = Box::leak(Box::new(ModuleName {
            dict: dict.into_any().into(),
            name: interned(name)?,
            watched: Cell::new(false),
            found: Slot::empty(),
            seen: Cell::new(0),
            announced: Cell::new(None),
        }));
        this.watched.set(watch(this));
        Ok(this)
    }

    /// What stands under the name now, or a NameError.
    #[inline(always)]
    pub(crate) fn get(&self) -> Result<Ref, Raised> {
        if self.seen.get() == changes()
            && let Some(found) = self.found.get()
        {
            return Ok(found);
        }
        self.look()
    }

    #[cold]
    fn look(&self) -> Result<Ref, Raised> {
        let now = changes();
        let found = self.lookup()?;
        if self.watched.get() && self.is_settled(found.as_ptr()) {
            self.seen.set(now);
            // Last, because dropping what was found before may run Python code.
            self.found.set(Some(found.clone_ref()));
        }
        Ok(found)
    }

    /// Has every change that was announced been made? `found` is what the dict has.
    fn is_settled(&self, found: *mut ffi::PyObject) -> bool {
        match self.announced.get() {
            Some(announced) if announced != found => false,
            _ => {
                self.announced.set(None);
                true
            }
        }
    }

    /// Is what [`ModuleName::get`] gives what the name will have until the next change?
    pub(crate) fn has_settled(&self) -> bool {
        // SAFETY: a module's dict and an interned string, whose comparison runs no Python code; a borrowed reference.
        self.is_settled(unsafe { ffi::PyDict_GetItemWithError(self.dict.as_ptr(), self.name.as_ptr()) })
    }

    fn lookup(&self) -> Result<Ref, Raised> {
        // SAFETY: as above; what is found is made ours at once.
        unsafe {
            let found = ffi::PyDict_GetItemWithError(self.dict.as_ptr(), self.name.as_ptr());
            if let Some(found) = Ref::from_nullable(found) {
                return Ok(found);
            }
            if ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_SetObject(ffi::PyExc_NameError, self.name.as_ptr());
            }
            Err(Raised)
        }
    }
}

/// The names that are watched, which live as long as the process. Relaxed everywhere: they are stored and read with the
/// GIL held.
static WATCHED: [AtomicPtr<ModuleName>; 8] = [const { AtomicPtr::new(null_mut()) }; 8];

fn watched() -> impl Iterator<Item = &'static ModuleName> {
    // SAFETY: null, or a name that `watch` was given.
    WATCHED.iter().map_while(|place| unsafe { place.load(Ordering::Relaxed).as_ref() })
}

/// False if CPython will not say when the name changes, or if there is no place left.
fn watch(name: &'static ModuleName) -> bool {
    // Before 3.12, the first name in a dict stands for all of them.
    if cfg!(not(Py_3_12)) && watched().any(|other| other.dict.is(&name.dict)) {
        return true;
    }
    let Some(place) = WATCHED.iter().find(|place| place.load(Ordering::Relaxed).is_null()) else {
        return false;
    };
    let reported = watching::begin(name);
    if reported {
        place.store(std::ptr::from_ref(name).cast_mut(), Ordering::Relaxed);
    }
    reported
}

/// CPython reports each change.
#[cfg(Py_3_12)]
mod watching {
    use std::ffi::c_int;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{ModuleName, Raised, ffi, watched};

    /// Relaxed everywhere, as for the names.
    static CHANGES: AtomicU64 = AtomicU64::new(1);
    static WATCHER: OnceLock<c_int> = OnceLock::new();

    unsafe extern "C" {
        /// Public and documented C API that pyo3-ffi does not declare.
        fn PyDict_AddWatcher(
            callback: unsafe extern "C" fn(
                c_int,
                *mut ffi::PyObject,
                *mut ffi::PyObject,
                *mut ffi::PyObject,
            ) -> c_int,
        ) -> c_int;
    }

    /// Called by CPython before it changes a dict that is watched. Runs no Python code and drops nothing.
    unsafe extern "C" fn announce(
        _event: c_int,
        dict: *mut ffi::PyObject,
        key: *mut ffi::PyObject,
        value: *mut ffi::PyObject,
    ) -> c_int {
        for name in watched() {
            // SAFETY: a live key, or null if all keys are affected.
            if name.dict.as_ptr() == dict && unsafe { is_name(key, name.name.as_ptr()) } {
                name.announced.set(Some(value));
                CHANGES.fetch_add(1, Ordering::Relaxed);
            }
        }
        0
    }

    unsafe fn is_name(key: *mut ffi::PyObject, name: *mut ffi::PyObject) -> bool {
        // SAFETY: comparing exact strings runs no Python code. Another key may be equal to the name, so it counts.
        key.is_null()
            || key == name
            || unsafe { ffi::PyUnicode_CheckExact(key) == 0 || ffi::PyUnicode_Compare(key, name) == 0 }
    }

    /// How many changes of names that are watched were announced, to be compared with an earlier answer.
    #[inline(always)]
    pub(crate) fn changes() -> u64 {
        CHANGES.load(Ordering::Relaxed)
    }

    /// False if CPython will not report: a process has few watchers, and there may be none left.
    pub(super) fn begin(name: &ModuleName) -> bool {
        // SAFETY: the GIL is held, and the function lives as long as the process.
        let watcher = *WATCHER.get_or_init(|| unsafe { PyDict_AddWatcher(announce) });
        // SAFETY: a live dict and a watcher of ours, or none.
        let begun = watcher >= 0 && unsafe { ffi::PyDict_Watch(watcher, name.dict.as_ptr()) } >= 0;
        if !begun {
            drop(Raised.take());
        }
        begun
    }
}

/// Each dict has a version number, which no dict had before its last change.
#[cfg(not(Py_3_12))]
mod watching {
    use super::{ModuleName, ffi, watched};

    /// A number that changes with each change of a watched module: the versions only grow, and so does their sum.
    #[inline(always)]
    pub(crate) fn changes() -> u64 {
        // SAFETY: a name that lives as long as the process owns the dict.
        let version =
            |name: &ModuleName| unsafe { (*name.dict.as_ptr().cast::<ffi::PyDictObject>()).ma_version_tag };
        watched().fold(0, |sum, name| sum.wrapping_add(version(name)))
    }

    pub(super) fn begin(_name: &ModuleName) -> bool {
        true
    }
}
