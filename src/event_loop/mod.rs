//! asyncio's event loop: the native half of `wakeloop.EventLoop`.
//!
//! Read in this order: [`core`] (what a loop is made of), [`turn`] (one turn of it), [`ready`] and
//! [`handle`] (what runs), [`source`] and [`watch`] (what a file descriptor leads to), [`sock_methods`], [`sock`] and
//! [`sock_try`] (awaitable socket calls: who makes them, how they wait, and what they try), [`sock_datagram`] (those that
//! know addresses), [`file_transfer`] (what `sendfile` does), [`inbox`] (how other threads reach it), [`chain`] (how an
//! executor's results do), [`chances`] (how other threads come by the GIL), [`calls`] (`call_soon` and its kin),
//! [`clock`] (what time it is), [`process`] (whose it is after a fork), [`tools`] (what others have put in asyncio's place), [`debug`] (what debug mode adds),
//! [`report`] (where errors go that no caller gets), and [`event_loop`] (the class that Python sees).
//!
//! **Ownership.** A loop's state belongs to the thread that runs it; other threads touch it only with the
//! GIL held, as they do with asyncio's own loop. No state is borrowed across a call into Python, so every
//! structure here is a cell whose methods finish before anything else can run. The one place that gives
//! the GIL up is the blocking poll; what must not happen meanwhile is said there.
//!
//! The room never names a transport: a token leads to a [`source::Source`].

pub(crate) mod calls;
pub(crate) mod chain;
pub(crate) mod chances;
pub(crate) mod clock;
pub(crate) mod core;
mod debug;
#[allow(clippy::module_inception, reason = "the class is called EventLoop, and so is its file")]
pub(crate) mod event_loop;
pub(crate) mod file_transfer;
pub(crate) mod futures;
pub(crate) mod handle;
pub(crate) mod inbox;
pub(crate) mod metrics;
pub(crate) mod process;
pub(crate) mod ready;
mod report;
pub(crate) mod sock;
pub(crate) mod sock_datagram;
pub(crate) mod sock_methods;
pub(crate) mod sock_try;
pub(crate) mod source;
pub(crate) mod timers;
pub(crate) mod tools;
pub(crate) mod turn;
pub(crate) mod watch;
