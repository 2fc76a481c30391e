//! asyncio's event loop: the native half of `wakeloop.EventLoop`.
//!
//! A *turn* is one iteration of the loop: what asyncio does in `_run_once`.
//!
//! The files in reading order. Each file uses only files above it in this list.
//!
//! - [`handle`]: handles and how they run
//! - [`core`]: the state of a loop, one file per part
//! - [`source`], [`fork`], [`report`]: more methods of the core
//! - [`watch`], [`completion`], [`sock`]: `add_reader`, `add_writer` and the awaitable socket calls
//! - [`calls`]: `call_soon`, `call_later` and the like; [`executor_future`]: the results of executors
//! - [`observe`]: metrics, slow turns, recorder: what looks at a loop, behind the hooks of [`observe::probe`]
//! - [`run`], [`debug`], [`entries`]: runs an entry of the ready queue
//! - [`dispatch`], [`poll`], [`turn`], [`stepping`]: one turn, by `run_forever` or by Python code
//! - [`simulation`]: what `wakeloop.testing` asks a loop
//! - [`event_loop`]: the Python class
//!
//! **Ownership.** A loop's state belongs to the thread that runs the loop. Other threads use it in a section of the loop
//! (see `capi::section`; with a GIL that is while they hold it), or send a message to the [`inbox`](core::inbox).
//!
//! **Borrows.** No state is borrowed during a call into Python. The blocking poll, `sendfile`, and sometimes
//! `call_soon_threadsafe` detach the thread; the heads of `poll.rs` and `sock/file_transfer.rs` say what must not happen
//! meanwhile.
//!
//! This module does not know transports: a token identifies a [`Source`](source::Source).

pub(crate) mod calls;
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
pub(crate) mod observe;
mod poll;
mod report;
mod run;
pub(crate) mod simulation;
pub(crate) mod sock;
pub(crate) mod source;
mod stepping;
mod support;
mod turn;
pub(crate) mod unraisable;
pub(crate) mod watch;
