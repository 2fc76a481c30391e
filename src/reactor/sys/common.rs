//! What the systems have in common.

use std::io;
use std::time::Duration;

use super::super::wait::Wait;

/// Converts the usual result of a system call: -1 means that errno has the error.
pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A wait as mio's poll has it.
pub(super) fn timeout(wait: Wait) -> Option<Duration> {
    match wait {
        Wait::Not => Some(Duration::ZERO),
        Wait::Until { left, .. } => Some(left),
        Wait::Forever => None,
    }
}
