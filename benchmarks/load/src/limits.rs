//! Limits of the process.

use std::io;

/// Raises the soft limit on open files to the hard one: thousands of connections need it.
pub fn allow_many_files() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid place for the limits.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
