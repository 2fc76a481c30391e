//! Threads by the numbers that the system's own tools show.

/// The system's number of the current thread.
pub(crate) fn thread_number() -> u64 {
    cfg_select! {
        any(target_os = "linux", target_os = "android") => {
            // SAFETY: the function has no preconditions.
            unsafe { libc::gettid() as u64 }
        }
        any(target_os = "macos", target_os = "ios") => {
            let mut number = 0;
            // SAFETY: 0 stands for the current thread, and `number` is a place for the result.
            unsafe { libc::pthread_threadid_np(0, &mut number) };
            number
        }
        _ => {
            // SAFETY: the function has no preconditions.
            unsafe { libc::pthread_self() as u64 & 0xffff_ffff }
        }
    }
}
