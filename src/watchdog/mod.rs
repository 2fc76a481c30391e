//! The watchdog: a thread that reports, while it happens, that a turn of a loop does not end.
//!
//! The room is above `event_loop`, which starts no threads and knows no reports: a loop only stores the time of its
//! last turn in its [`heartbeat`](crate::kernel::core::probe::heartbeat). The files in reading order; each uses only
//! files above it in this list.
//!
//! - [`stack`]: a Python stack, as text
//! - [`attached`]: reads a stack, and the names of thread and task, with the GIL
//! - [`memory`], [`layout`], [`detached`]: read a stack, and the holder of the GIL, without the GIL
//! - [`output`]: the file
//! - [`helper`]: the second thread, which takes the GIL
//! - [`report`]: what is written about a turn that does not end
//! - [`monitor`]: the thread that looks at the heartbeats
//! - [`handle`]: the Python class
//!
//! **Two threads.** The monitor never takes the GIL: native code that keeps it would block the monitor too. For a report
//! it starts a helper, which takes the GIL and reads everything with it. If the helper does not get the GIL in time, the
//! monitor reads the stack without it. While all is well there is no helper.
//!
//! **What holds with the GIL.** The stack is exact: the helper first checks that the turn still goes on, and nothing
//! runs meanwhile. It runs no Python code, and no garbage collection.
//!
//! **What holds without the GIL.** The interpreter may change or free what is being read, as with `faulthandler`. Here
//! the kernel copies the memory, so an address that is gone is an error, not a crash; types are checked, and lengths
//! are bounded. A report whose turn has ended meanwhile is thrown away. When nobody can take the GIL, the loop's thread
//! stands in native code or waits, so its stack does not change in practice. The layout of the interpreter's structs is
//! tested when the watchdog starts, and not used if the test fails.
//!
//! **On a free-threaded build** there is no helper: to be attached keeps no other thread from going on. Everything is
//! read as without the GIL. A thread that computes changes its stack meanwhile, so it is read until two in a row have
//! the same functions. Names of tasks are not read.
//!
//! **Locks.** The two threads and `stop` share one mutex. Nobody who holds it waits for the GIL. A forked child does not
//! touch its parent's.

mod attached;
pub(crate) mod detached;
pub(crate) mod handle;
mod helper;
mod layout;
mod memory;
mod monitor;
mod output;
pub(crate) mod report;
pub(crate) mod stack;
