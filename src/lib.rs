//! wakeloop: an async runtime for Rust, and an event loop for Python's asyncio on the same foundations.
//!
//! The runtime can be used without Python:
//!
//! ```
//! use std::time::Duration;
//! use wakeloop::runtime::{Runtime, spawn, sync::mpsc, time};
//!
//! let runtime = Runtime::new()?;
//! let sum = runtime.block_on(async {
//!     let (sender, mut receiver) = mpsc::bounded(8);
//!     for number in 1..=3 {
//!         let sender = sender.clone();
//!         spawn(async move {
//!             time::sleep(Duration::from_millis(number)).await;
//!             sender.send(number).await.expect("the receiver is there");
//!         });
//!     }
//!     drop(sender);
//!     let mut sum = 0;
//!     while let Some(number) = receiver.recv().await {
//!         sum += number;
//!     }
//!     sum
//! });
//! assert_eq!(sum, 6);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! In Python, the package `wakeloop` has the event loop and awaitables that run on this runtime. Other extension
//! crates use the module `bridge`, which lets Python await a Rust future, and Rust await a Python awaitable.
//!
//! A folder of `src` is a room. It uses only rooms on lower floors:
//!
//! | floor | rooms |
//! |---|---|
//! | 5 | `primitives`: the awaitables that Python awaits and Rust runs |
//! | 4 | `transport`: asyncio's transports; `bridge`: between Python's awaitables and Rust's futures; `watchdog`: reports turns that do not end; `window`: answers questions about the process |
//! | 3 | `event_loop`: asyncio's loop; [`runtime`]: the async runtime for Rust futures |
//! | 2 | `compat`: whether asyncio is unpatched, and what differs between CPython's versions |
//! | 1 | `framing`: where items end in a stream of bytes; `histogram`: counts durations; `capi`: the raw C API of CPython; `libssl`: the process's own OpenSSL; `mailbox`: messages to a thread that may be parked; `metrics`: what a table of metrics makes; [`reactor`]: readiness by epoll or kqueue; `recorder`: the flight recorder; `resolver`: names from the C library; `settings`: the environment variables; `spin`: whether a wait begins with a spin; [`timer`]: the timer heap |
//! | 0 | `clock`: the clocks of the system; `fork`: what belongs to one process; `memory`: allocations that may fail; `poison`: locks whose holder has panicked; `wait_queue`: a line of waiters, first come, first served |
//!
//! The Python half is behind the feature `python`, which is on by default. Without it the crate is the runtime alone
//! and knows nothing of Python.

#![deny(missing_docs)]

#[cfg_attr(not(feature = "python"), allow(dead_code, reason = "a runtime without Python reads fewer clocks"))]
mod clock;
#[cfg_attr(not(feature = "python"), allow(dead_code, reason = "nobody counts forks there"))]
mod fork;
mod framing;
#[cfg(wakeloop_fuzz)]
#[path = "../tests/fuzz/targets/mod.rs"]
pub mod fuzzing;
mod histogram;
#[cfg(any(feature = "python", test))]
mod mailbox;
mod memory;
#[cfg_attr(not(feature = "python"), allow(dead_code, reason = "the names and the help are for Python"))]
mod metrics;
mod one_user;
mod poison;
pub mod reactor;
#[cfg_attr(not(feature = "python"), allow(dead_code, reason = "only the Python half starts a recording"))]
mod recorder;
mod resolver;
pub mod runtime;
#[cfg_attr(not(feature = "python"), allow(dead_code, reason = "a runtime without Python has three of them"))]
mod settings;
mod spin;
pub mod timer;
mod wait_queue;

#[cfg(feature = "python")]
pub mod bridge;
#[cfg(feature = "python")]
mod capi;
#[cfg(feature = "python")]
mod compat;
#[cfg(feature = "python")]
mod event_loop;
#[cfg(feature = "python")]
mod kernel;
#[cfg(feature = "python")]
mod libssl;
#[cfg(feature = "python")]
mod module;
#[cfg(feature = "python")]
mod primitives;
#[cfg(feature = "python")]
mod transport;
#[cfg(feature = "python")]
mod watchdog;
#[cfg(feature = "python")]
mod window;
