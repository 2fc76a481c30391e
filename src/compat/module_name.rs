//! Caches a global of a Python module that programs may patch. The global is looked up again only after a change.
//!
//! From 3.12 on CPython reports each change of a watched dict, just before it makes the change. So the reported value
//! may not be in the dict yet: another watcher of the same dict may run code in between. Nothing is cached until the
//! lookup finds the reported value. Before 3.12 each dict has a version number, and CPython never uses a number twice.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) use self::watching::changes;
use crate::capi::fallible::interned;
use crate::capi::section::FREE_THREADED;
use crate::capi::shared::dict_item;
use crate::capi::{Fallible, Raised, Ref, Slot};

/// A name in the dict of a module.
#[derive(Debug)]
pub(crate) struct ModuleName {
    dict: Ref,
    name: Ref,
    /// Changes of this dict are noticed, by CPython's reports or by the version number. Stored at import.
    watched: AtomicBool,
    /// The value that the last lookup found, after `seen` changes. It is an owned reference: another watcher may change
    /// the dict again while CPython reports a change, although the documentation forbids that. On a free-threaded build
    /// nothing is cached, and both stay empty: a lookup is cheaper there than a lock.
    found: Slot,
    seen: Cell<u64>,
    /// The value that the last reported change sets; null for a deletion. [`NOTHING`] once a lookup has found that value.
    announced: AtomicPtr<ffi::PyObject>,
}

/// No object has this address.
const NOTHING: *mut ffi::PyObject = std::ptr::without_provenance_mut(1);

impl ModuleName {
    /// Watches a name until the process ends. Called by the module's initialisation.
    pub(crate) fn watch(py: Python<'_>, module: &str, name: &str) -> PyResult<&'static ModuleName> {
        let dict: Bound<'_, PyDict> = py.import(Fallible(module))?.dict();
        let this = Box::leak(Box::new(ModuleName {
            dict: dict.into_any().into(),
            name: interned(name)?,
            watched: AtomicBool::new(false),
            found: Slot::empty(),
            seen: Cell::new(0),
            announced: AtomicPtr::new(NOTHING),
        }));
        // Relaxed: the import lock orders this before every other reader.
        this.watched.store(watching::begin(this), Ordering::Relaxed);
        Ok(this)
    }

    /// The current value of the name, or a NameError.
    #[inline(always)]
    pub(crate) fn get(&self) -> Result<Ref, Raised> {
        if !FREE_THREADED
            && self.seen.get() == changes()
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
        if !FREE_THREADED && self.watched.load(Ordering::Relaxed) && self.is_settled(found.as_ptr()) {
            self.seen.set(now);
            // Last, because dropping the previous value may run Python code.
            self.found.set(Some(found.clone_ref()));
        }
        Ok(found)
    }

    /// Has the last reported change been made? `found` is the value in the dict.
    fn is_settled(&self, found: *mut ffi::PyObject) -> bool {
        // Ordering: Acquire, pairs with the Release store in `announce`. The caller has loaded the number of changes before
        // it has looked the value up, so a change that it has not seen here changes that number.
        let announced = self.announced.load(Ordering::Acquire);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        announced == NOTHING
            || announced == found
                && self.announced.compare_exchange(announced, NOTHING, success, failure).is_ok()
    }

    /// Is the answer of [`ModuleName::get`] valid until the next change?
    pub(crate) fn has_settled(&self) -> bool {
        // SAFETY: a module's dict and an interned string, whose comparison runs no Python code.
        let found = unsafe { dict_item(self.dict.as_ptr(), &self.name) };
        self.is_settled(found.map_or(std::ptr::null_mut(), |found| found.as_ptr()))
    }

    fn lookup(&self) -> Result<Ref, Raised> {
        // SAFETY: a module's dict and an interned string, whose comparison runs no Python code.
        unsafe {
            if let Some(found) = dict_item(self.dict.as_ptr(), &self.name) {
                return Ok(found);
            }
            if ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_SetObject(ffi::PyExc_NameError, self.name.as_ptr());
            }
            Err(Raised)
        }
    }
}

/// From 3.12 on: CPython reports each change.
#[cfg(Py_3_12)]
mod watching {
    use std::ffi::c_int;
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    use super::{ModuleName, Raised, ffi};

    /// The watched names. They are never freed. Stored at import, and read in the watcher.
    static WATCHED: [AtomicPtr<ModuleName>; 8] = [const { AtomicPtr::new(null_mut()) }; 8];
    /// How many changes were announced.
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

    /// The watcher, which CPython calls before it changes a watched dict. It runs no Python code and drops no
    /// reference.
    unsafe extern "C" fn announce(
        _event: c_int,
        dict: *mut ffi::PyObject,
        key: *mut ffi::PyObject,
        value: *mut ffi::PyObject,
    ) -> c_int {
        for place in &WATCHED {
            // SAFETY: null, or one of the names that `ModuleName::watch` has leaked.
            // Ordering: Acquire, pairs with the Release store in `begin`.
            let Some(name) = (unsafe { place.load(Ordering::Acquire).as_ref() }) else { break };
            // SAFETY: CPython passes a live key, or null if the change affects all keys.
            if name.dict.as_ptr() == dict && unsafe { is_name(key, name.name.as_ptr()) } {
                // Ordering: Release, pairs with the Acquire load in `is_settled`.
                name.announced.store(value, Ordering::Release);
                // Ordering: Release, pairs with the Acquire load in `changes`: who sees the number sees what was announced.
                CHANGES.fetch_add(1, Ordering::Release);
            }
        }
        0
    }

    unsafe fn is_name(key: *mut ffi::PyObject, name: *mut ffi::PyObject) -> bool {
        // SAFETY: comparing exact strings runs no Python code. A key of another type may be equal to the name, so it
        // counts as equal.
        key.is_null()
            || key == name
            || unsafe { ffi::PyUnicode_CheckExact(key) == 0 || ffi::PyUnicode_Compare(key, name) == 0 }
    }

    /// A number that grows with each reported change of a watched name.
    #[inline(always)]
    pub(crate) fn changes() -> u64 {
        // Ordering: Acquire, pairs with the addition in `announce`.
        CHANGES.load(Ordering::Acquire)
    }

    /// Has CPython report the changes of a name. False if it cannot, because a process can have only a few watchers, or
    /// if too many names are watched already.
    pub(super) fn begin(name: &'static ModuleName) -> bool {
        let Some(place) = WATCHED.iter().find(|place| place.load(Ordering::Relaxed).is_null()) else {
            return false;
        };
        // SAFETY: this thread is attached, and the function lives as long as the process.
        let watcher = *WATCHER.get_or_init(|| unsafe { PyDict_AddWatcher(announce) });
        // SAFETY: a live dict, and the watcher that was added above, if there is one.
        let begun = watcher >= 0 && unsafe { ffi::PyDict_Watch(watcher, name.dict.as_ptr()) } >= 0;
        if begun {
            // Ordering: Release, pairs with the Acquire load in `announce`.
            place.store(std::ptr::from_ref(name).cast_mut(), Ordering::Release);
        } else {
            drop(Raised.take());
        }
        begun
    }
}

/// Before 3.12: each dict has a version number, and each change gives it a higher one.
#[cfg(not(Py_3_12))]
mod watching {
    use std::sync::atomic::{AtomicPtr, Ordering};

    use super::{ModuleName, ffi};

    static NO_DICT: u64 = 0;

    /// The version numbers of the dicts of the watched names, and zero in free places, so that a sum has nothing to
    /// check: each turn asks. Relaxed everywhere: they are stored and read with the GIL held.
    static VERSIONS: [AtomicPtr<u64>; 4] = [const { AtomicPtr::new((&raw const NO_DICT).cast_mut()) }; 4];

    /// A number that grows with each change of a watched module: the sum of the version numbers.
    #[inline(always)]
    pub(crate) fn changes() -> u64 {
        // SAFETY: of a dict whose name owns it and is never freed, or of none.
        VERSIONS.iter().fold(0, |sum, place| sum.wrapping_add(unsafe { *place.load(Ordering::Relaxed) }))
    }

    /// The number covers all names of a dict, so that each dict has one place. False if all are taken.
    pub(super) fn begin(name: &'static ModuleName) -> bool {
        // SAFETY: a live dict.
        let version = unsafe { &raw mut (*name.dict.as_ptr().cast::<ffi::PyDictObject>()).ma_version_tag };
        let free = (&raw const NO_DICT).cast_mut();
        let place = VERSIONS.iter().find(|place| [version, free].contains(&place.load(Ordering::Relaxed)));
        if let Some(place) = place {
            place.store(version, Ordering::Relaxed);
        }
        place.is_some()
    }
}
