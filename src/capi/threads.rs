//! The threads that have a state in the interpreter.

use pyo3::ffi;

/// Is this the only thread that Python code can run on? Called with the GIL held.
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

/// This thread's `threading.get_ident()`.
pub(crate) fn ident() -> u64 {
    // SAFETY: the function may always be called.
    let thread = unsafe { libc::pthread_self() };
    #[allow(clippy::unnecessary_cast, reason = "on some systems it is another integer, or a pointer")]
    {
        thread as u64
    }
}
