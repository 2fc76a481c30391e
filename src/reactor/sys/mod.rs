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

mod common;

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
