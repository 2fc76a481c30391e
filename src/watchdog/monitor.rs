//! The thread that looks at the heartbeats. It never takes the GIL.
//!
//! A turn is reported when it reaches the limit, then at two, four, eight times the limit, and once more when it has
//! ended. A heartbeat says when the turn began. So the monitor wakes up once per limit while all is well, and still
//! reports a turn on time.

use std::sync::Arc;
use std::time::Duration;

use super::helper::Shared;
use super::output::Output;
use super::report::{Report, describe, describe_end};
use crate::clock::monotonic_nanos;
use crate::kernel::core::probe::heartbeat::{Beat, Heartbeat};
use crate::kernel::core::probe::registry;

/// The shortest limit. The monitor wakes up as often.
const SHORTEST: u64 = 1_000_000;
/// How often the monitor looks whether a reported turn has ended.
const LOOK: u64 = 10_000_000;
/// How long a report waits for the GIL, at least and at most; in between it is the limit. These are several switch
/// intervals, in which threads that run Python code give the GIL up.
const LEAST_PATIENCE: Duration = Duration::from_millis(20);
const MOST_PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Monitor {
    shared: Arc<Shared>,
    /// In nanoseconds, as all times here.
    limit: u64,
    output: Output,
    stalls: Vec<Stall>,
}

/// A turn that was reported.
#[derive(Debug)]
struct Stall {
    heartbeat: &'static Heartbeat,
    beat: Beat,
    since: u64,
    /// How long the turn has to last for the next report.
    next: u64,
    event_loop: String,
}

impl Monitor {
    pub(super) fn new(shared: &Arc<Shared>, limit: Duration, output: Output) -> Monitor {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(SHORTEST);
        Monitor { shared: shared.clone(), limit, output, stalls: Vec::new() }
    }

    /// Runs until the watchdog is stopped.
    pub(super) fn run(mut self) {
        let mut wait = self.limit;
        while self.shared.wait(Duration::from_nanos(wait)) {
            self.note_ends();
            wait = self.note_stalls();
        }
        self.note_ends();
    }

    fn note_ends(&mut self) {
        let Monitor { output, stalls, .. } = self;
        stalls.retain(|stall| {
            let goes_on = stall.heartbeat.beat() == stall.beat;
            if !goes_on {
                output.write(&describe_end(&stall.event_loop, stall.beat, since(stall.since)));
            }
            goes_on
        });
    }

    /// Reports what is to be reported, and returns how long to wait.
    fn note_stalls(&mut self) -> u64 {
        let mut wait = self.limit;
        let patience = Duration::from_nanos(self.limit).clamp(LEAST_PATIENCE, MOST_PATIENCE);
        for heartbeat in registry::heartbeats() {
            let beat = heartbeat.beat();
            let Some(start) = beat.since() else { continue };
            let known = self
                .stalls
                .iter()
                .position(|stall| stall.beat == beat && std::ptr::eq(stall.heartbeat, heartbeat));
            let due = known.map_or(self.limit, |known| self.stalls[known].next);
            let elapsed = since(start);
            if elapsed < due {
                wait = wait.min(due - elapsed);
                continue;
            }
            let Some(Report { text, event_loop }) =
                describe(&self.shared, heartbeat, beat, patience, || since(start))
            else {
                continue;
            };
            self.output.write(&text);
            let next = next_report(self.limit, since(start));
            match known {
                Some(known) => self.stalls[known].next = next,
                None => self.stalls.push(Stall { heartbeat, beat, since: start, next, event_loop }),
            }
        }
        if self.stalls.is_empty() { wait } else { wait.min(LOOK) }
    }
}

fn since(start: u64) -> u64 {
    monotonic_nanos().saturating_sub(start)
}

/// How long a turn that was reported after `elapsed` has to last for the next report.
fn next_report(limit: u64, elapsed: u64) -> u64 {
    let mut next = limit;
    while next <= elapsed {
        next = next.saturating_mul(2);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_at_doubling_times() {
        let times = [10, 11, 19, 20, 39, 40, 1000].map(|elapsed| next_report(10, elapsed));
        assert_eq!(times, [20, 20, 20, 40, 40, 80, 1280]);
        assert_eq!(next_report(u64::MAX, u64::MAX - 1), u64::MAX);
    }
}
