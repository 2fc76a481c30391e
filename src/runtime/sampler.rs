//! Decides for which wakes the delay until the poll is measured.
//!
//! Two looks at the clock for each wake would cost more than some polls take. So a sample of the wakes is
//! measured. Whoever queues woken tasks, which is a worker or a thread outside the runtime, has a [`Sampler`],
//! which counts its wakes down. The wake that ends the countdown writes the time into the task, and the worker
//! that polls the task records how old it is. So a wake costs one decrement, and a poll costs nothing: that the
//! task is a sample is a value of a field that each poll reads anyway.
//!
//! - **How many.** About one wake per [`PERIOD`], but at least one in [`MAX_WEIGHT`]. So whoever wakes rarely
//!   measures each wake. A worker that has become idle gives up a countdown that began when it was busy.
//! - **Which.** The countdown begins at random, with a known mean. So each wake is as likely to be measured as its
//!   neighbours, also if there is a pattern in the wakes. A sample stands for as many wakes as that mean.

use std::cell::Cell;

use super::clock;
use super::task::Runnable;

/// How often a busy thread takes a sample, in nanoseconds. A sample costs about a thousandth of that.
const PERIOD: u64 = 100_000;
/// If the last sample of a worker that goes to sleep is older than this, its wakes have become rare.
const RARE: u64 = 100 * PERIOD;
/// The most wakes that one sample stands for.
const MAX_WEIGHT: u8 = 240;

/// The countdown of one thread.
pub(super) struct Sampler {
    /// Wakes until the next sample.
    left: Cell<u16>,
    /// Where the countdown began.
    interval: Cell<u16>,
    /// The mean of where it could have begun.
    weight: Cell<u8>,
    /// When the last sample was taken.
    last: Cell<u64>,
}

impl Sampler {
    pub(super) const fn new() -> Sampler {
        Sampler { left: Cell::new(1), interval: Cell::new(1), weight: Cell::new(1), last: Cell::new(0) }
    }

    /// Counts the wake, or the spawn, of a task that is about to be queued.
    #[inline(always)]
    pub(super) fn count(&self, task: Runnable) -> Runnable {
        let left = self.left.get().wrapping_sub(1);
        self.left.set(left);
        if left == 0 { self.sample(task) } else { task }
    }

    /// The thread goes to sleep.
    #[inline]
    pub(super) fn sleeps(&self, now: u64) {
        if now.saturating_sub(self.last.get()) > RARE {
            self.left.set(1);
            self.interval.set(1);
            self.weight.set(1);
        }
    }

    #[cold]
    fn sample(&self, task: Runnable) -> Runnable {
        let now = clock::nanos();
        task.sampled(now, self.restart(now))
    }

    /// Begins the next countdown. Returns how many wakes the sample of the last one stands for.
    fn restart(&self, now: u64) -> u8 {
        let weight = self.weight.get();
        let took = now.saturating_sub(self.last.replace(now)).max(1);
        let fit = u64::from(self.interval.get()) * PERIOD / took;
        // Decrease at once. Increase step by step, because a few wakes in a row may be a short burst.
        let fit = fit.min(2 * u64::from(weight)).clamp(1, MAX_WEIGHT.into());
        // The lower digits of the clock, spread over the word by a multiplication, are random enough.
        let random = now.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let interval = (1 + random % (2 * fit - 1)) as u16;
        self.weight.set(fit as u8);
        self.interval.set(interval);
        self.left.set(interval);
        weight
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use super::*;

    /// Counts wakes that come every so many nanoseconds. Returns how many were samples, and for how many they
    /// stand.
    fn sampled(wakes: u64, every: u64) -> (u64, u64) {
        let sampler = Sampler::new();
        let (mut samples, mut weights) = (0, 0);
        for wake in 0..wakes {
            sampler.left.set(sampler.left.get() - 1);
            if sampler.left.get() == 0 {
                samples += 1;
                weights += u64::from(sampler.restart(1_000_000_000 + wake * every));
            }
        }
        (samples, weights)
    }

    #[test]
    fn rare_wakes_are_all_samples() {
        assert_eq!(sampled(1000, 2 * PERIOD), (1000, 1000));
    }

    #[test]
    fn frequent_wakes_are_samples_in_proportion_and_the_weights_add_up() {
        for every in [5, 100, 1_000, 10_000] {
            let wakes = 1_000_000;
            let (samples, weights) = sampled(wakes, every);
            let expected = (wakes * every / PERIOD).max(wakes / u64::from(MAX_WEIGHT));
            assert!(samples > expected / 2 && samples < expected * 2, "{samples} instead of {expected}");
            assert!(weights.abs_diff(wakes) < wakes / 20, "{weights} instead of {wakes}");
        }
    }

    #[test]
    fn a_worker_that_has_become_idle_samples_its_next_wake() {
        let sampler = Sampler::new();
        for wake in 0..100 {
            sampler.restart(1_000_000_000 + wake);
        }
        assert!(sampler.weight.get() > 100);
        sampler.sleeps(1_000_000_099 + RARE);
        assert!(sampler.weight.get() > 100);
        sampler.sleeps(1_000_000_100 + RARE);
        assert_eq!((sampler.left.get(), sampler.restart(1_000_000_100 + RARE)), (1, 1));
    }

    #[test]
    fn a_pattern_in_the_wakes_does_not_decide_which_are_samples() {
        // Eight wakes come at once, every millisecond.
        let sampler = Sampler::new();
        let mut weights = [0; 8];
        for wake in 0..800_000 {
            sampler.left.set(sampler.left.get() - 1);
            if sampler.left.get() == 0 {
                weights[wake % 8] +=
                    u32::from(sampler.restart((wake / 8 * 1_000_000 + wake % 8 * 100) as u64));
            }
        }
        assert!(weights.iter().all(|weight| (80_000..120_000).contains(weight)), "{weights:?}");
    }
}
