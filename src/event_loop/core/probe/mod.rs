//! [`Probe`], all that observes a loop. The kernel calls it by the hooks in `observe/probe.rs`, and by nothing else.

pub(crate) mod heartbeat;
pub(crate) mod metrics;
pub(crate) mod page;
pub(crate) mod recorder;
pub(crate) mod step_times;
pub(crate) mod turn_meter;

use std::cell::Cell;

use self::heartbeat::{Heartbeat, NOBODY};
use self::page::LoopCounters;
use self::recorder::LoopRecorder;
use self::step_times::StepTimes;
use self::turn_meter::TurnMeter;

#[derive(Debug)]
pub(crate) struct Probe {
    /// Not in the core itself, because it is large, and can be on the shared page.
    pub(crate) counters: LoopCounters,
    pub(crate) meter: TurnMeter,
    pub(crate) recorder: LoopRecorder,
    pub(crate) step_times: StepTimes,
    pub(crate) heartbeat: Cell<&'static Heartbeat>,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe {
            counters: LoopCounters::default(),
            meter: TurnMeter::default(),
            recorder: LoopRecorder::default(),
            step_times: StepTimes::default(),
            heartbeat: Cell::new(&NOBODY),
        }
    }
}
