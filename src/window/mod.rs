//! The window: a thread that answers questions about this process over HTTP, also while Python cannot.
//!
//! The files in reading order; each uses only files above it in this list.
//!
//! - [`head`]: reads the head of a request
//! - [`answer`]: an answer, and its bytes
//! - [`json`]: writes objects and lists
//! - [`exposition`]: the metrics as families, and in Prometheus' text format
//! - [`readiness`]: what the program has set with `wakeloop.set_ready`
//! - [`python`]: asks Python, in a thread that waits for the GIL
//! - [`period`]: requests about the next seconds
//! - [`labels`]: the processor time by label
//! - [`trace`]: what the flight recorder records from now on
//! - [`socket_path`]: the path of a socket, however long
//! - [`address`]: parses addresses, and opens their sockets
//! - [`group`]: the other processes that have the same TCP address
//! - [`pages`]: what each path answers
//! - [`server`]: the thread, its connections and their limits
//! - [`handle`]: the Python class
//!
//! **Without the GIL.** The thread never takes it. `/tasks`, and the start of a recorder for `/trace`, need it: a
//! helper waits for it, and the window waits for the helper, for a second at most. It reads atomics (the registry of
//! loops, the metrics of the runtime, readiness), and the stacks of other threads as the [watchdog](crate::watchdog)
//! does. It has a current-thread runtime of its own, and waits in it without a timeout while nobody asks. Gauges are
//! counted by the loops themselves: a request asks them to, ten times a second at most, and waits for two milliseconds
//! at most.
//!
//! **Limits of a peer.** A head has 8 KiB and five seconds. An answer is given up if the peer takes nothing of it for
//! five seconds. A connection has a hundred requests. There are 32 connections: a further one takes the place of the
//! oldest. On a TCP address, the name in `Host` has to be ours. On one that is not loopback, only three paths are
//! served.
//!
//! **Fork and exit.** A forked child closes its copies of listeners and connections, which it knows by their names for
//! the system, and has no window until it opens one. A recording that was started for `/trace` is not its own. The
//! thread runs until the process ends, and asks nothing of Python from `atexit` on; the socket's file is removed by
//! `atexit` of the C library.

mod address;
mod answer;
pub(crate) mod exposition;
#[cfg(wakeloop_fuzz)]
#[path = "../../tests/fuzz/targets/window.rs"]
pub(crate) mod fuzz;
mod group;
pub(crate) mod handle;
mod head;
mod json;
mod labels;
mod pages;
mod period;
mod python;
mod readiness;
mod server;
mod socket_path;
mod trace;
