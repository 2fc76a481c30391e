//! Which threads the interpreter knows.

use pyo3::ffi;

/// Is this the only thread that Python code can run on? Called with the GIL held.
pub(crate) fn is_only_thread() -> bool {
    // SAFETY: the GIL is held, so the state of this thread and its interpreter live. Others put themselves at the head
    // of the list without the GIL, which is what makes this the last one; nothing but this thread's own is looked into.
    unsafe {
        let own = ffi::PyThreadState_Get();
        let first = ffi::PyInterpreterState_ThreadHead(ffi::PyThreadState_GetInterpreter(own));
        first == own && ffi::PyThreadState_Next(own).is_null()
    }
}
