//! [`Probe`], all that observes a loop. The kernel calls it by the hooks in `observe/probe.rs`, and by nothing else.

pub(crate) mod busy_waits;
pub(crate) mod heartbeat;
pub(crate) mod labels;
pub(crate) mod metrics;
pub(crate) mod recorder;
pub(crate) mod registry;
pub(crate) mod step_times;
pub(crate) mod turn_meter;

use std::cell::Cell;
use std::sync::Arc;

use self::busy_waits::BusyWaits;
use self::heartbeat::{Heartbeat, NOBODY};
use self::metrics::Counters;
use self::recorder::LoopRecorder;
use self::registry::Registration;
use self::step_times::StepTimes;
use self::turn_meter::TurnMeter;
use super::inbox::Inbox;

#[derive(Debug)]
pub(crate) struct Probe {
    /// The counters in the loop's entry of the registry.
    pub(crate) counters: &'static Counters,
    pub(crate) registered: Registration,
    pub(crate) meter: TurnMeter,
    pub(crate) recorder: LoopRecorder,
    pub(crate) step_times: StepTimes,
    pub(crate) busy_waits: BusyWaits,
    pub(crate) heartbeat: Cell<&'static Heartbeat>,
}

impl Probe {
    pub(crate) fn new(inbox: &Arc<Inbox>) -> Probe {
        let registered = Registration::new(inbox);
        Probe {
            counters: &registered.entry().counters,
            registered,
            meter: TurnMeter::default(),
            recorder: LoopRecorder::default(),
            step_times: StepTimes::default(),
            busy_waits: BusyWaits::default(),
            heartbeat: Cell::new(&NOBODY),
        }
    }
}
