//! Sleeps until a point in time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::now::now;
use crate::runtime::clock::after;
use crate::runtime::driver::{Armed, Handle, TimerEntry};
use crate::runtime::trace::TraceEvent;
use crate::runtime::{context, coop};

/// A sleep of at least this length is hardly ever over when it is first polled, so it is armed without reading
/// the clock.
const LONG: Duration = Duration::from_millis(1);

/// Waits for `duration`, counted from this call. It never waits less. It waits longer by the time that a
/// wake-up takes, some tens of microseconds on an idle machine. Sleeps that end in quick succession are served
/// together, which adds at most a 16th of the duration, and never more than a millisecond. Cancel-safe.
pub fn sleep(duration: Duration) -> Sleep {
    let mut sleep = sleep_until(after(now(), duration));
    sleep.duration = duration;
    sleep
}

/// Waits until `deadline`. Cancel-safe.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, duration: Duration::ZERO, timer: None, entry: TimerEntry::new() }
}

/// The future of [`sleep`] and [`sleep_until`]. It is ready again if polled again.
///
/// # Panics
/// When polled on a thread that belongs to no runtime, or after its runtime was shut down, unless the deadline
/// has passed. Also if it is the first timer or socket of a runtime, and the process has no descriptors left.
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep {
    deadline: Instant,
    /// The duration it was made for, or zero if it was made for a deadline.
    duration: Duration,
    /// The driver whose heap has, or had, the entry.
    timer: Option<Arc<Handle>>,
    /// Pinned and `!Unpin`, and so is `Sleep`.
    entry: TimerEntry,
}

impl Sleep {
    /// When it ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Ends a sleep that cannot be armed: it is ready if its deadline has passed, and panics otherwise.
    #[cold]
    fn over_or_else(&self, panic: fn() -> !) -> Poll<()> {
        if now() >= self.deadline { Poll::Ready(()) } else { panic() }
    }

    fn arm(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the entry is not moved out of; it stays pinned as a field of `self`.
        let this = unsafe { self.get_unchecked_mut() };
        let driver = context::try_with(|shared| {
            shared.trace(TraceEvent::TimerArmed { deadline: this.deadline });
            match shared.open_driver() {
                Ok(driver) => driver.clone(),
                Err(error) => panic!("no descriptor is left for the first timer of this runtime: {error}"),
            }
        });
        let Some(driver) = driver else { return this.over_or_else(context::missing) };
        let driver = this.timer.insert(driver);
        // SAFETY: pinned, as a field of `self`; `drop` cancels it on the same driver.
        let armed = unsafe { driver.timers.arm(Pin::new_unchecked(&this.entry), this.deadline, cx.waker()) };
        match armed {
            Armed::Waiting => {}
            Armed::EndWait => driver.unpark(),
            Armed::Closed => return this.over_or_else(closed),
        }
        Poll::Pending
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        coop::spend(cx, |cx| self.poll_deadline(cx))
    }
}

impl Sleep {
    fn poll_deadline(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.as_ref().get_ref();
        if this.entry.has_fired() {
            // Only a shutdown fires a timer early. This thread may go by another clock than the timer.
            if now() < this.deadline && this.timer.as_ref().is_some_and(|driver| driver.is_closed()) {
                closed();
            }
            return Poll::Ready(());
        }
        match &this.timer {
            Some(driver) if this.entry.is_armed() => {
                // SAFETY: `entry` is a field of the pinned `self`.
                let entry = unsafe { Pin::new_unchecked(&this.entry) };
                if driver.timers.refresh(entry, cx.waker()) {
                    return Poll::Pending;
                }
                self.poll_deadline(cx)
            }
            _ => {
                let mut left = this.duration;
                if left < LONG {
                    left = this.deadline.saturating_duration_since(now());
                    if left.is_zero() {
                        return Poll::Ready(());
                    }
                }
                this.entry.set_slack(left);
                self.arm(cx)
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(driver) = &self.timer
            && self.entry.is_armed()
        {
            driver.timers.cancel(&self.entry);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

#[cold]
fn closed() -> ! {
    panic!("the runtime of this sleep was shut down")
}
