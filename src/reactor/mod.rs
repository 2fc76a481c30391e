//! The reactor: one [`Poller`] reports which of many file descriptors are ready.
//!
//! It is a thin layer over mio that adds two things which mio leaves out and both halves of wakeloop need:
//! level-triggered registrations (asyncio's `add_reader` promises them) and timeouts finer than a millisecond.
//!
//! It has no policy: no futures, no Python, no timers, no table of what a token means. A `Poller` belongs to
//! one thread at a time (`poll` takes `&mut self`); other threads reach it through its [`Waker`] and, where
//! they have to register descriptors, through a [`Registrar`].
//!
//! Invariants:
//! - the poller never owns or closes a registered descriptor: deregister it before closing it (the kernel
//!   removes a descriptor that is closed without that, unless a duplicate of it is still open);
//! - events are snapshots: after handling one event a later event of the same batch may be about a descriptor
//!   that the handler closed. Owners that reuse tokens put a generation into them;
//! - `poll` allocates nothing.

mod local;
mod poller;
mod readiness;
mod sys;
mod wait;

pub use local::receive_local;
/// Ends a [`poll`](Poller::poll) from another thread: see [`Poller::waker`].
pub use mio::Waker;
pub use poller::{Poller, Registrar};
pub use readiness::{Event, Interest, Readiness, Token};
pub use sys::Alarm;
pub use wait::Wait;
