//! The scenarios, compiled once per runtime: `super` is the runtime.
//!
//! The numbers are those of the list in `main`. A body gets the number of repetitions, so that a run is long enough for
//! the clock. "Local" bodies run inside a task, "remote" ones on another thread.

#[path = "scenarios/latency.rs"]
pub mod latency;
#[path = "scenarios/messages.rs"]
mod messages;
#[path = "scenarios/sockets.rs"]
mod sockets;
#[path = "scenarios/tasks.rs"]
mod tasks;
#[path = "scenarios/timers.rs"]
mod timers;

use super::{Rt, join};
use crate::api::{Body, Clock, Kind, Scenario};

pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (name, prepare) in [tasks::LIST, messages::LIST, timers::LIST, sockets::LIST].concat() {
        let by = if name.contains("all_fire") { Clock::Cpu } else { Clock::Wall };
        all.push(Scenario { name, prepare, by });
    }
    all
}

type Entry = (&'static str, fn(Kind) -> Body);

/// A body that runs as a task of `rt`.
fn local<F>(rt: Rt, body: impl Fn(u64) -> F + 'static) -> Body
where
    F: Future<Output = ()> + Send + 'static,
{
    Box::new(move |n| rt.block_on(join(rt.spawn(body(n)))))
}
