//! asyncio's event loop: the native half of `wakeloop.EventLoop`.
//!
//! Read in this order; each file uses only files that stand above it in this list:
//!
//! - [`handle`]: what a callback is, and how it runs
//! - [`core`]: what a loop is made of, one file per part
//! - [`source`], [`fork`], [`report`]: more of the core's methods
//! - [`watch`], [`completion`], [`sock`]: what waits for descriptors
//! - [`calls`]: `call_soon` and its kin; [`executor_future`]: how an executor's results come back
//! - [`run`], [`debug`], [`entries`]: how one entry of the ready queue runs
//! - [`dispatch`], [`poll`], [`turn`], [`stepping`]: one turn of the loop, by `run_forever` or by Python code
//! - [`event_loop`]: the class that Python sees
//!
//! **Ownership.** A loop's state belongs to the thread that runs it. Other threads touch it only with the GIL held, as
//! they do with asyncio's own loop, or send a message to the [`inbox`](core::inbox).
//!
//! **Borrows.** No state is borrowed across a call into Python. The blocking poll is the one place that gives up the GIL;
//! `poll.rs` says what must not happen meanwhile.
//!
//! The room never names a transport: a token leads to a [`Source`](source::Source).

pub(crate) mod calls;
pub(crate) mod clock;
pub(crate) mod completion;
pub(crate) mod core;
mod debug;
mod dispatch;
mod entries;
#[allow(clippy::module_inception, reason = "the class is called EventLoop, and so is its file")]
pub(crate) mod event_loop;
pub(crate) mod executor_future;
mod fork;
pub(crate) mod futures;
pub(crate) mod handle;
mod poll;
mod report;
mod run;
pub(crate) mod sock;
pub(crate) mod source;
mod stepping;
mod support;
mod turn;
pub(crate) mod unraisable;
pub(crate) mod watch;
