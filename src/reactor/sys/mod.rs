//! What the reactor needs from each operating system beyond mio.
//!
//! Each system's module provides:
//!
//! - `set_level(poll, fd, token, interest, registered)`: `poll` is the raw descriptor of mio's own selector. Adds a
//!   level-triggered entry to it, or changes the one that is registered, such that mio reports it with `token` like
//!   any other and mio's deregistration removes it.
//! - `add_exclusive(poll, fd, token)`: adds a level-triggered entry for reading. Of the pollers that have `fd` like this,
//!   an arrival wakes only the one that has added it first, if the system can do that.
//! - `struct Alarm`: see there. Its `new` fails where the system has no such descriptor.
//! - `struct Precision` with `new(&mio::Registry)`, which cannot fail, and `poll(&mut self, &mut mio::Poll,
//!   &mut mio::Events, Wait)`: like mio's poll, but precise to well under a millisecond. It may end early. Its own
//!   events have the token `INTERNAL`, or do not appear.
//! - `may_be_cut(flags)`: whether a read of a Unix socket with these `msg_flags` may have ended before the data
//!   did.

use std::io;
use std::time::Duration;

use super::Wait;

cfg_select! {
    any(target_os = "linux", target_os = "android") => {
        mod linux;
        pub use linux::Alarm;
        pub(super) use linux::{Precision, add_exclusive, may_be_cut, set_level};
    }
    _ => {
        mod bsd;
        pub use bsd::Alarm;
        pub(super) use bsd::{Precision, add_exclusive, may_be_cut, set_level};
    }
}

/// Converts the usual result of a system call: -1 means that errno has the error.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A wait as mio's poll has it.
fn timeout(wait: Wait) -> Option<Duration> {
    match wait {
        Wait::Not => Some(Duration::ZERO),
        Wait::Until { left, .. } => Some(left),
        Wait::Forever => None,
    }
}
