//! The clock of a simulated runtime.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::clock::after;
use crate::poison::unpoisoned;

/// A clock that a test controls. It never goes back.
#[derive(Debug)]
pub(in super::super) struct TestClock(Mutex<ClockState>);

#[derive(Clone, Copy, Debug)]
enum ClockState {
    Paused {
        now: Instant,
    },
    /// It goes on from `from`, where it stood at `since`, a time of the system.
    Running {
        from: Instant,
        since: Instant,
    },
}

/// The clock is not in the state that a call needs.
#[derive(Debug)]
pub(super) struct WrongState;

impl ClockState {
    fn now(self) -> Instant {
        match self {
            ClockState::Paused { now } => now,
            ClockState::Running { from, since } => from + since.elapsed(),
        }
    }
}

impl TestClock {
    pub(super) fn new(paused: bool) -> TestClock {
        let now = Instant::now();
        TestClock(Mutex::new(if paused {
            ClockState::Paused { now }
        } else {
            ClockState::Running { from: now, since: now }
        }))
    }

    pub(in super::super) fn now(&self) -> Instant {
        unpoisoned(self.0.lock()).now()
    }

    pub(in super::super) fn is_paused(&self) -> bool {
        matches!(*unpoisoned(self.0.lock()), ClockState::Paused { .. })
    }

    pub(super) fn pause(&self) -> Result<(), WrongState> {
        let mut state = unpoisoned(self.0.lock());
        let ClockState::Running { .. } = *state else { return Err(WrongState) };
        *state = ClockState::Paused { now: state.now() };
        Ok(())
    }

    pub(super) fn resume(&self) -> Result<(), WrongState> {
        let mut state = unpoisoned(self.0.lock());
        let ClockState::Paused { now } = *state else { return Err(WrongState) };
        *state = ClockState::Running { from: now, since: Instant::now() };
        Ok(())
    }

    /// Moves a paused clock forward.
    pub(super) fn advance(&self, duration: Duration) -> Result<(), WrongState> {
        let mut state = unpoisoned(self.0.lock());
        let ClockState::Paused { now } = &mut *state else { return Err(WrongState) };
        *now = after(*now, duration);
        Ok(())
    }

    /// Moves a paused clock to `to`, unless it is there already.
    pub(in super::super) fn jump(&self, to: Instant) {
        if let ClockState::Paused { now } = &mut *unpoisoned(self.0.lock()) {
            *now = to.max(*now);
        }
    }
}
