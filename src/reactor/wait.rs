//! How long a poll waits.

use std::time::Duration;

/// How long a poll waits for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It looks without waiting.
    Not,
    /// Until a time of `CLOCK_MONOTONIC`, in nanoseconds, which is `left` from now. Which of the two counts depends on
    /// the system.
    ///
    /// A caller that waits for the same deadline again passes the same `at`: then there is nothing to set up.
    Until {
        /// The time at which it ends.
        at: u64,
        /// How long that is from now.
        left: Duration,
    },
    /// For as long as it takes.
    Forever,
}

impl Wait {
    /// A wait of this duration that begins at `now`, in nanoseconds of `CLOCK_MONOTONIC`.
    #[inline]
    #[must_use]
    pub fn within(now: u64, left: Duration) -> Wait {
        if left.is_zero() {
            return Wait::Not;
        }
        let nanos = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        Wait::Until { at: now.saturating_add(nanos), left }
    }

    /// How long it may last, in nanoseconds: `u64::MAX` if nothing limits it.
    #[must_use]
    pub fn nanos(self) -> u64 {
        match self {
            Wait::Not => 0,
            Wait::Until { left, .. } => u64::try_from(left.as_nanos()).unwrap_or(u64::MAX),
            Wait::Forever => u64::MAX,
        }
    }
}
