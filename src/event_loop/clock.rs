//! The loop's clock, and how often somebody may have put another one in its place.
//!
//! asyncio's loop asks `time.monotonic` whenever it wants to know the time, so tools that freeze time replace that
//! function, at times in the middle of a coroutine. A loop of ours asks the kernel; it looks for a replacement when it
//! is made, when it begins to run, and when Python's `time` module has changed since.

use pyo3::ffi;
use pyo3::prelude::*;

pub(crate) use self::module_dict::changes;
use crate::capi::Fallible;

/// The clock of `loop.time()`: CLOCK_MONOTONIC in seconds, computed as `time.monotonic()` does.
#[inline(always)]
pub(crate) fn monotonic() -> f64 {
    monotonic_nanos() as f64 / 1e9
}

/// CLOCK_MONOTONIC in nanoseconds.
#[inline(always)]
pub(crate) fn monotonic_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid clock and a valid place; this cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Begins to count the changes of the `time` module. Called once, by the module's initialisation.
pub(crate) fn learn(py: Python<'_>) -> PyResult<()> {
    module_dict::watch(py.import(Fallible("time"))?.dict().unbind());
    Ok(())
}

/// CPython tells us of each change.
#[cfg(Py_3_12)]
mod module_dict {
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Py, ffi};
    use crate::capi::Raised;

    static CHANGES: AtomicU64 = AtomicU64::new(0);

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

    /// How often the module has been changed, to be compared with an earlier answer.
    #[inline(always)]
    pub(crate) fn changes() -> u64 {
        // Relaxed: changed and read with the GIL held.
        CHANGES.load(Ordering::Relaxed)
    }

    /// There are few watchers in a process. Without one, a clock replaced in the middle of a run is seen at the next.
    pub(super) fn watch(dict: Py<pyo3::types::PyDict>) {
        // SAFETY: the GIL is held, and the function lives as long as the process.
        let watcher = unsafe { PyDict_AddWatcher(count) };
        // SAFETY: a live dict and a watcher of ours, or none.
        if watcher < 0 || unsafe { ffi::PyDict_Watch(watcher, dict.as_ptr()) } < 0 {
            drop(Raised.take());
        }
    }
}

/// The dict counts its changes itself.
#[cfg(not(Py_3_12))]
mod module_dict {
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use super::{Py, ffi};

    static DICT: AtomicPtr<ffi::PyDictObject> = AtomicPtr::new(null_mut());

    /// How often the module has been changed, to be compared with an earlier answer.
    #[inline(always)]
    pub(crate) fn changes() -> u64 {
        // Relaxed: set once, before any loop is made.
        let dict = DICT.load(Ordering::Relaxed);
        // SAFETY: the dict is kept for ever, and read with the GIL held.
        if dict.is_null() { 0 } else { unsafe { (*dict).ma_version_tag } }
    }

    /// Keeps the dict for ever.
    pub(super) fn watch(dict: Py<pyo3::types::PyDict>) {
        // Relaxed: before any loop is made.
        DICT.store(dict.into_ptr().cast(), Ordering::Relaxed);
    }
}
