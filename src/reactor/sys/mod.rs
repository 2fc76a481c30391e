//! Everything the reactor has to ask of one operating system rather than of mio.
//!
//! Each system's module provides:
//!
//! - `register_level(poll, fd, token, interest)` and `reregister_level(…)`: `poll` is the raw descriptor of mio's
//!   own selector. Adds or changes a level-triggered entry in it, such that mio reports it with `token` like any
//!   other and mio's deregistration removes it.
//! - `struct Precision` with `new()`, which cannot fail and acquires nothing, and
//!   `poll(&mut self, &mut mio::Poll, &mut mio::Events, Option<Duration>)`: mio's poll, but a finite timeout is
//!   kept to well under a millisecond. It may end early. It shows its own events under `INTERNAL` or not at all.
//! - `may_be_cut(flags)`: whether a read of a Unix socket that gave these `msg_flags` may have ended before the data did.

use std::io;

cfg_select! {
    any(target_os = "linux", target_os = "android") => {
        mod linux;
        pub(super) use linux::{Precision, may_be_cut, register_level, reregister_level};
    }
    _ => {
        mod bsd;
        pub(super) use bsd::{Precision, may_be_cut, register_level, reregister_level};
    }
}

/// The convention of most system calls: -1 says look at errno.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
