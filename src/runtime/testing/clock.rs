//! The clock of a simulated runtime.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::time::after;
use super::super::unpoisoned;

/// A clock that a test controls. It never goes back.
#[derive(Debug)]
pub(in super::super) struct Clock(Mutex<State>);

#[derive(Clone, Copy, Debug)]
enum State {
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

impl State {
    fn now(self) -> Instant {
        match self {
            State::Paused { now } => now,
            State::Running { from, since } => from + since.elapsed(),
        }
    }
}

impl Clock {
    pub(super) fn new(paused: bool) -> Clock {
        let now = Instant::now();
        Clock(Mutex::new(if paused {
            State::Paused { now }
        } else {
            State::Running { from: now, since: now }
        }))
    }

    pub(in super::super) fn now(&self) -> Instant {
        unpoisoned(self.0.lock()).now()
    }

    pub(in super::super) fn is_paused(&self) -> bool {
        matches!(*unpoisoned(self.0.lock()), State::Paused { .. })
    }

    pub(super) fn pause(&self) -> Result<(), WrongState> {
        let mut state = unpoisoned(self.0.lock());
        let State::Running { .. } = *state else { return Err(WrongState) };
        *state = State::Paused { now: state.now() };
        Ok(())
    }

    pub(super) fn resume(&self) -> Result<(), WrongState> {
        let mut state = unpoisoned(self.0.lock());
        let State::Paused { now } = *state else { return Err(WrongState) };
        *state = State::Running { from: now, since: Instant::now() };
        Ok(())
    }

    /// Moves a paused clock forward.
    pub(super) fn advance(&self, duration: Duration) -> Result<(), WrongState> {
        let mut state = unpoisoned(self.0.lock());
        let State::Paused { now } = &mut *state else { return Err(WrongState) };
        *now = after(*now, duration);
        Ok(())
    }

    /// Moves a paused clock to `to`, unless it is there already.
    pub(in super::super) fn jump(&self, to: Instant) {
        if let State::Paused { now } = &mut *unpoisoned(self.0.lock()) {
            *now = to.max(*now);
        }
    }
}
