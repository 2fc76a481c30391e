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

/// Why a thread cannot attach to the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unattached {
    /// The interpreter is shutting down.
    Finalizing,
    /// The interpreter has no memory for the state of a new thread.
    NoMemory,
}

impl From<Unattached> for std::io::Error {
    fn from(reason: Unattached) -> std::io::Error {
        match reason {
            Unattached::Finalizing => std::io::Error::other("the interpreter is shutting down"),
            Unattached::NoMemory => std::io::ErrorKind::OutOfMemory.into(),
        }
    }
}

/// How often the memory for the state of a thread is asked for, a millisecond apart.
const STATE_TRIES: u32 = 20;

/// The state of this thread in the interpreter, which this code has made. The thread is attached.
struct NewState(*mut ffi::PyThreadState);

impl NewState {
    /// Makes a state, and attaches the thread, which has none. Tries again for a moment: other threads may free memory.
    fn new() -> Result<NewState, Unattached> {
        for _ in 0..STATE_TRIES {
            // SAFETY: the interpreter is initialized, and the thread has no state yet, so this one becomes its own.
            unsafe {
                let state = new_thread_state(ffi::PyInterpreterState_Main());
                if !state.is_null() {
                    ffi::PyEval_RestoreThread(state);
                    return Ok(NewState(state));
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Unattached::NoMemory)
    }
}

/// A state for this thread, or null if there is no memory for it.
///
/// # Safety
/// A live interpreter, in which the thread has no state.
#[cfg(Py_3_12)]
unsafe fn new_thread_state(interpreter: *mut ffi::PyInterpreterState) -> *mut ffi::PyThreadState {
    // SAFETY: the caller's contract.
    unsafe { ffi::PyThreadState_New(interpreter) }
}

/// As above, in the two steps of Python 3.11's `PyThreadState_New`, which makes the second one with null too, and crashes.
///
/// # Safety
/// A live interpreter, in which the thread has no state.
#[cfg(not(Py_3_12))]
unsafe fn new_thread_state(interpreter: *mut ffi::PyInterpreterState) -> *mut ffi::PyThreadState {
    unsafe extern "C" {
        fn _PyThreadState_Prealloc(interpreter: *mut ffi::PyInterpreterState) -> *mut ffi::PyThreadState;
        fn _PyThreadState_SetCurrent(state: *mut ffi::PyThreadState);
    }
    // SAFETY: the caller's contract. The interpreter exports both functions, for its own extension modules.
    unsafe {
        let state = _PyThreadState_Prealloc(interpreter);
        if !state.is_null() {
            _PyThreadState_SetCurrent(state);
        }
        state
    }
}

impl Drop for NewState {
    fn drop(&mut self) {
        // SAFETY: the thread is attached with this state, which nobody uses any more.
        unsafe {
            ffi::PyThreadState_Clear(self.0);
            ffi::PyThreadState_DeleteCurrent();
        }
    }
}

/// Runs `body` on this thread, attached to the interpreter: as `Python::try_attach`, which ends the process if there is
/// no memory for the state of the thread.
pub(crate) fn try_attach<T>(body: impl FnOnce(Python<'_>) -> T) -> Result<T, Unattached> {
    // SAFETY: the functions may be called on every thread, the third one in an interpreter that is initialized.
    let has_state = unsafe {
        if ffi::Py_IsInitialized() == 0 {
            return Err(Unattached::Finalizing);
        }
        #[cfg(Py_3_13)]
        if ffi::Py_IsFinalizing() != 0 {
            return Err(Unattached::Finalizing);
        }
        !ffi::PyGILState_GetThisThreadState().is_null()
    };
    let _state = if has_state { None } else { Some(NewState::new()?) };
    Python::try_attach(body).ok_or(Unattached::Finalizing)
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
