//! asyncio's face of a loop: the native half of `wakeloop.EventLoop`, over the [kernel](crate::kernel).
//!
//! The files in reading order. Each file uses only files above it in this list, and the kernel.
//!
//! - [`sock`]: the awaitable socket calls
//! - [`executor_future`]: the results of executors
//! - [`simulation`]: what `wakeloop.testing` asks a loop
//! - [`event_loop`]: the Python class
//! - [`calls`]: `call_soon`, `call_later` and the like

pub(crate) mod calls;
#[allow(clippy::module_inception, reason = "the class is called EventLoop, and so is its file")]
pub(crate) mod event_loop;
pub(crate) mod executor_future;
pub(crate) mod simulation;
pub(crate) mod sock;
