//! The runtimes behind one set of names.
//!
//! Each module here offers the same items, and each compiles the same scenarios against them: the body of a
//! scenario is one text, and the runtime is chosen by what `super` means. No trait object and no boxed future
//! stands between a body and its runtime.

use std::future::Future;

pub mod smol;
pub mod tokio;
pub mod wakeloop;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Workers(usize),
    CurrentThread,
}

/// A scenario on one runtime, called with a number of repetitions.
pub type Body = Box<dyn FnMut(u64)>;

/// One scenario; `prepare` makes its runtime and whatever has to be there before the clock starts.
#[derive(Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub prepare: fn(Kind) -> Body,
    pub by: Clock,
}

/// What a number of sleeps cost. Bytes are those that the process grew by, times are CPU time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sleeps {
    pub arm_ns: f64,
    pub cancel_ns: f64,
    pub bytes_per_sleep: f64,
    pub bytes_per_task: f64,
    pub cpu_per_task: f64,
    /// In milliseconds, as the others.
    pub late_p50: f64,
    pub late_p99: f64,
    pub late_max: f64,
}

/// How late timer and socket were, each time, in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    pub timer: Vec<f64>,
    pub socket: Vec<f64>,
}

/// What to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Wall,
    /// CPU time: the scenario mostly sleeps, so its wall time is given.
    Cpu,
}
