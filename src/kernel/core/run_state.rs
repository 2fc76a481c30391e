//! The state of the loop's run: idle or running, stopping.

use std::cell::Cell;

/// The phase of the native `run_forever`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is not active.
    #[default]
    Idle,
    Running,
    /// A turn dispatches its events. Their callbacks run at once, before the callbacks of due timers and those that
    /// other events have scheduled.
    Dispatching,
}

#[derive(Debug, Default)]
pub(crate) struct RunState {
    phase: Cell<Phase>,
    /// `stop()` was called, so the run ends after the current turn.
    pub(crate) stopping: Cell<bool>,
    /// A tool has replaced a part of the iteration, so the native run ends after the current turn, and Python goes on.
    pub(crate) replaced: Cell<bool>,
}

impl RunState {
    #[inline(always)]
    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    #[inline(always)]
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.set(phase);
    }

    /// Does the native run end after the current turn?
    #[inline(always)]
    pub(crate) fn ends_run(&self) -> bool {
        self.stopping.get() | self.replaced.get()
    }

    /// Suspends the dispatch while Python code polls inside a callback: the callbacks of that poll's events are queued
    /// instead of run. Returns the phase that the caller has to [`enter`](RunState::enter) afterwards.
    pub(crate) fn leave_dispatch(&self) -> Phase {
        let outer = self.phase.get();
        if outer == Phase::Dispatching {
            self.phase.set(Phase::Running);
        }
        outer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_inside_of_a_callback_suspends_the_dispatch() {
        let state = RunState::default();
        for (outer, inside) in [
            (Phase::Idle, Phase::Idle),
            (Phase::Running, Phase::Running),
            (Phase::Dispatching, Phase::Running),
        ] {
            state.enter(outer);
            let left = state.leave_dispatch();
            assert_eq!(state.phase(), inside);
            state.enter(left);
            assert_eq!(state.phase(), outer);
        }
    }
}
