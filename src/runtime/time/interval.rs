//! Periodic ticks.

use std::pin::Pin;
use std::time::{Duration, Instant};

use super::now::now;
use super::sleep::{Sleep, sleep_until};
use crate::runtime::clock::after;

/// Ticks now, and then every `period`.
///
/// # Panics
/// If `period` is zero.
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval needs a period");
    Interval { period, sleep: Box::pin(sleep_until(now())) }
}

/// The ticks of [`interval`].
#[derive(Debug)]
pub struct Interval {
    period: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Interval {
    /// Waits for the next tick, and returns when it was due. Ticks are counted from the first, so they do not
    /// drift. Ticks that a slow caller missed are skipped. Cancel-safe.
    pub async fn tick(&mut self) -> Instant {
        self.sleep.as_mut().await;
        let due = self.sleep.deadline();
        let late = now().saturating_duration_since(due).as_nanos() / self.period.as_nanos();
        let steps = u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
        self.sleep.set(sleep_until(after(due, self.period.saturating_mul(steps))));
        due
    }

    /// The time between two ticks.
    pub fn period(&self) -> Duration {
        self.period
    }
}
