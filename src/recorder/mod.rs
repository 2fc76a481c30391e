//! The flight recorder: the last events of the process's loops and of its runtime, in rings in memory.
//!
//! Policy-free: it knows neither Python nor what the events are about. Who records an event says what it was and
//! when; who asks gets all of them as a trace in Chrome's format, which Perfetto opens.
//!
//! | part | what it is |
//! |---|---|
//! | [`clock`] | the ticks that events are stamped with, and their conversion to nanoseconds |
//! | [`event`] | one event: 16 bytes |
//! | [`ring`] | the last events of one writer |
//! | [`names`] | the names of callbacks and tasks, each kept once |
//! | [`recording`] | the recording of this process: from its start to its end |
//! | [`worker`] | the writer of a thread that holds no GIL |
//! | [`trace`], [`json`] | writes what the rings hold as a trace |
//!
//! Invariants:
//! - Recording an event blocks nobody: no lock, no allocation, no system call. A name that is new takes a lock, and
//!   if another thread has it, the event goes without its name.
//! - A ring has one writer at a time. All loops share one ring, because their threads hold the GIL when they write.
//!   Without a GIL each has its own for as long as it lives. Each worker of the runtime has its own.
//! - Any thread may read a ring while it is written. It gets the events that were not overwritten meanwhile.
//! - With no recording, a writer loads one flag.

pub(crate) mod clock;
pub(crate) mod event;
#[cfg(wakeloop_fuzz)]
#[path = "../../tests/fuzz/targets/recorder.rs"]
pub(crate) mod fuzz;
pub(crate) mod json;
pub(crate) mod names;
pub(crate) mod recording;
pub(crate) mod ring;
pub(crate) mod thread;
pub(crate) mod trace;
pub(crate) mod worker;
