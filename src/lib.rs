//! wakeloop: a Rust async runtime under Python's asyncio.
//!
//! One crate, two halves on shared foundations. A room uses only rooms on lower floors:
//!
//! | floor | rooms |
//! |---|---|
//! | 4 | `primitives`: what Python awaits and Rust runs |
//! | 3 | `transport`: asyncio's transports; `bridge`: where the halves meet |
//! | 2 | `event_loop`: asyncio's loop; [`runtime`]: the async runtime for Rust futures |
//! | 1 | `framing`: where items end in a stream of bytes; `capi`: raw CPython C API; `libssl`: the process's own OpenSSL; [`reactor`]: mio; `resolver`: the C library's names; [`timer`]: the timer heap |
//!
//! The Python half is behind the feature `python` (on by default); without it the crate is the runtime
//! alone and knows nothing of Python.

mod framing;
pub mod reactor;
mod resolver;
pub mod runtime;
pub mod timer;

#[cfg(feature = "python")]
pub mod bridge;
#[cfg(feature = "python")]
#[allow(dead_code, reason = "the typed adapters are being taken into use room by room")]
mod capi;
#[cfg(feature = "python")]
mod compat;
#[cfg(feature = "python")]
mod event_loop;
#[cfg(feature = "python")]
mod libssl;
#[cfg(feature = "python")]
mod module;
#[cfg(feature = "python")]
mod primitives;
#[cfg(feature = "python")]
mod transport;
