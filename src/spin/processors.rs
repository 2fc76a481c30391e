//! Whether there are processors to spare.

use std::sync::OnceLock;
use std::thread::available_parallelism;

/// Whether the process has the time of two processors: then a spin does not keep from running what it waits for. A
/// process that is bound to one of several processors may spin too, because what it waits for can run on another.
///
/// The answer is found once, in the first thread that wants to spin.
pub(super) fn suffice() -> bool {
    static SUFFICE: OnceLock<bool> = OnceLock::new();
    *SUFFICE.get_or_init(|| match allowed() {
        // Then the share of the process's cgroup cannot be told from this.
        1 => online() >= 2,
        _ => available_parallelism().is_ok_and(|share| share.get() >= 2),
    })
}

/// How many processors the system has.
fn online() -> libc::c_long {
    // SAFETY: plain values.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }
}

/// On how many of them this thread may run. Zero if that is not known.
#[cfg(target_os = "linux")]
fn allowed() -> libc::c_int {
    // SAFETY: all bits zero is an empty set, and the system writes no more than its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        libc::CPU_COUNT(&set)
    }
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> libc::c_int {
    0
}
