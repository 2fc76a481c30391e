//! The kernel of a loop: its state, its handles, and one turn after another.
//!
//! A *turn* is one iteration of the loop: what asyncio does in `_run_once`.
//!
//! The files in reading order. Each file uses only files above it in this list.
//!
//! - [`handle`]: handles and how they run
//! - [`core`]: the state of a loop, one file per part
//! - [`source`], [`fork`], [`report`]: more methods of the core
//! - [`watch`], [`completion`], [`futures`]: who waits for a descriptor, and the futures of tasks that wait
//! - [`observe`]: metrics, slow turns, recorder: what looks at a loop, behind the hooks of [`observe::probe`]
//! - [`run`], [`debug`], [`entries`]: runs an entry of the ready queue
//! - [`dispatch`], [`poll`], [`turn`], [`stepping`]: one turn, by `run_forever` or by Python code
//!
//! **Ownership.** A loop's state belongs to the thread that runs the loop. Other threads use it in a section of the loop
//! (see `capi::section`; with a GIL that is while they hold it), or send a message to the [`inbox`](core::inbox).
//!
//! **Borrows.** No state is borrowed during a call into Python. The blocking poll, `sendfile`, and sometimes
//! `call_soon_threadsafe` detach the thread; the heads of `poll.rs` and `event_loop/sock/file_transfer.rs` say what must
//! not happen meanwhile.
//!
//! The kernel knows neither asyncio's methods nor transports: a token identifies a [`Source`](source::Source), and who
//! waits for a descriptor says how it is woken ([`watch`]).

pub(crate) mod completion;
pub(crate) mod core;
mod debug;
mod dispatch;
pub(crate) mod entries;
mod fork;
pub(crate) mod futures;
pub(crate) mod handle;
pub(crate) mod observe;
mod poll;
mod report;
mod run;
pub(crate) mod source;
pub(crate) mod stepping;
pub(crate) mod support;
pub(crate) mod turn;
pub(crate) mod unraisable;
pub(crate) mod watch;
