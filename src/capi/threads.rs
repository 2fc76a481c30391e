//! The threads that have a state in the interpreter, and how they wait for each other.

use std::ffi::{c_int, c_longlong, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;

use super::error::{Raised, no_memory};
use super::inspect::status;

/// Is this the only thread that Python code can run on? Called with the GIL held; nobody asks without one.
pub(crate) fn is_only_thread() -> bool {
    // SAFETY: the GIL is held, so the state of this thread and its interpreter live. Other threads may enter the list
    // at its head without the GIL, so only this thread's own state is read. If it is the first and the last of the
    // list, it is the only one.
    unsafe {
        let own = ffi::PyThreadState_Get();
        let first = ffi::PyInterpreterState_ThreadHead(ffi::PyThreadState_GetInterpreter(own));
        first == own && ffi::PyThreadState_Next(own).is_null()
    }
}

/// Runs `body`, which may wait. If this thread holds the GIL, it is released meanwhile.
pub(crate) fn released<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    // SAFETY: both functions may be called on every thread. Without an interpreter the second says 1 everywhere.
    let attached = unsafe { ffi::Py_IsInitialized() != 0 && ffi::PyGILState_Check() != 0 };
    if !attached {
        return body();
    }
    // SAFETY: just checked.
    unsafe { Python::assume_attached() }.detach(body)
}

/// This thread's `threading.get_ident()`.
pub(crate) fn ident() -> u64 {
    // SAFETY: the function may always be called.
    let thread = unsafe { libc::pthread_self() };
    #[allow(clippy::unnecessary_cast, reason = "on some systems it is another integer, or a pointer")]
    {
        thread as u64
    }
}

/// A lock of the interpreter's own, with which one thread waits for another once.
///
/// A wait ends early for a signal, as the waits of `threading` do, so that a Python signal handler runs at once.
#[derive(Debug)]
pub(crate) struct Parker(NonNull<c_void>);

// SAFETY: `PyThread_type_lock` is made for use from several threads: one may release what another has acquired, and
// neither needs to be attached to the interpreter.
unsafe impl Send for Parker {}
// SAFETY: as above.
unsafe impl Sync for Parker {}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Parked {
    Woken,
    TimedOut,
    /// By a signal. The caller runs Python's signal handlers.
    Interrupted,
}

/// The longest wait that the interpreter takes, or less: a day. Whoever waits longer waits again.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

unsafe extern "C" {
    // pyo3-ffi leaves these out. They are part of the stable ABI.
    fn PyThread_allocate_lock() -> *mut c_void;
    fn PyThread_free_lock(lock: *mut c_void);
    /// Returns 0 on a timeout, 1 if the lock is acquired, 2 if a signal came.
    fn PyThread_acquire_lock_timed(
        lock: *mut c_void,
        microseconds: c_longlong,
        interruptible: c_int,
    ) -> c_int;
    fn PyThread_release_lock(lock: *mut c_void);
}

impl Parker {
    /// # Errors
    /// Raises MemoryError.
    pub(crate) fn new() -> Result<Arc<Parker>, Raised> {
        // SAFETY: a new lock or null. It is free, so that this takes it at once: a wait is the attempt to take it again.
        let lock = unsafe {
            let lock = PyThread_allocate_lock();
            if !lock.is_null() {
                PyThread_acquire_lock_timed(lock, 0, 0);
            }
            lock
        };
        NonNull::new(lock).map(|lock| Arc::new(Parker(lock))).ok_or_else(no_memory)
    }

    /// Ends the wait, or the next one. Called once.
    pub(crate) fn unpark(&self) {
        // SAFETY: `new` has taken the lock, and only this call releases it.
        unsafe { PyThread_release_lock(self.0.as_ptr()) };
    }

    /// Waits for [`Parker::unpark`], detached from the interpreter, until `deadline`.
    pub(crate) fn park(&self, py: Python<'_>, deadline: Option<Instant>) -> Parked {
        loop {
            let wait = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()).min(LONGEST_WAIT),
                None => LONGEST_WAIT,
            };
            // Rounded up, so that no wait ends early.
            let microseconds = wait.as_nanos().div_ceil(1000) as c_longlong;
            // SAFETY: the lock lives as long as `self`.
            let got = py.detach(|| unsafe { PyThread_acquire_lock_timed(self.0.as_ptr(), microseconds, 1) });
            match got {
                1 => return Parked::Woken,
                0 if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                0 => return Parked::TimedOut,
                _ => return Parked::Interrupted,
            }
        }
    }
}

impl Drop for Parker {
    fn drop(&mut self) {
        // SAFETY: no thread waits for the lock, because a waiting thread holds a reference to `self`.
        unsafe { PyThread_free_lock(self.0.as_ptr()) };
    }
}

/// Runs Python's signal handlers, if this is the main thread and there were signals.
pub(crate) fn run_signal_handlers() -> Result<(), Raised> {
    // SAFETY: this thread is attached.
    status(unsafe { ffi::PyErr_CheckSignals() })
}
