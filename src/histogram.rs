//! A histogram of durations with logarithmic buckets.
//!
//! Four buckets for each doubling, so that a bucket's bounds differ by a fifth: from 131 µs, below which all durations
//! share the first bucket, to 69 s, above which all share the last.
//!
//! - One thread writes it. Any thread may read it at any time, and may find the numbers a moment apart.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Durations below this have one bucket, in nanoseconds: a power of two.
pub(crate) const LOWEST: u64 = 1 << LOWEST_BITS;
const LOWEST_BITS: u32 = 17;
/// Durations from here on have one bucket.
const HIGHEST_BITS: u32 = 36;
/// Each doubling has `1 << STEP_BITS` buckets.
const STEP_BITS: u32 = 2;
/// How many buckets there are.
pub(crate) const BUCKETS: usize = (((HIGHEST_BITS - LOWEST_BITS) << STEP_BITS) + 2) as usize;

/// Counts durations. All relaxed: each number stands for itself.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    max: AtomicU64,
}

/// The numbers of a histogram at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// How many durations each bucket has counted.
    pub(crate) counts: [u64; BUCKETS],
    /// The sum of all durations, in nanoseconds. The histogram itself does not have it.
    pub(crate) sum: u64,
    /// The longest duration, in nanoseconds.
    pub(crate) max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [const { AtomicU64::new(0) }; BUCKETS], max: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts a duration in nanoseconds. Only the one writer may call this.
    #[cfg(any(feature = "python", test))]
    #[inline]
    pub(crate) fn count(&self, nanos: u64) {
        self.count_times(nanos, 1);
    }

    /// Counts a duration in nanoseconds as if it had occurred so many `times`. Only the one writer may call this.
    #[inline]
    pub(crate) fn count_times(&self, nanos: u64, times: u64) {
        add(&self.counts[bucket(nanos)], times);
        if nanos > self.max.load(Relaxed) {
            self.max.store(nanos, Relaxed);
        }
    }

    /// The current numbers. The caller passes the sum of the durations, which the histogram does not keep.
    pub(crate) fn snapshot(&self, sum: u64) -> Snapshot {
        Snapshot {
            counts: std::array::from_fn(|index| self.counts[index].load(Relaxed)),
            sum,
            max: self.max.load(Relaxed),
        }
    }

    /// Forgets everything. Only the one writer may call this.
    #[cfg(any(feature = "python", test))]
    pub(crate) fn reset(&self) {
        self.counts.iter().chain([&self.max]).for_each(|number| number.store(0, Relaxed));
    }
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot { counts: [0; BUCKETS], sum: 0, max: 0 }
    }
}

impl Snapshot {
    /// How many durations were counted.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The duration in nanoseconds that `percent` of all durations do not exceed: the upper bound of a bucket, or the
    /// longest duration if that is less. Zero if nothing was counted.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count() as f64 * percent / 100.0).max(1.0);
        let mut upto = 0_u64;
        for (count, bound) in self.counts.iter().zip(bounds()) {
            upto = upto.saturating_add(*count);
            if upto as f64 >= rank {
                return bound.min(self.max);
            }
        }
        self.max
    }

    /// Adds the durations that another histogram has counted.
    pub(crate) fn merge(&mut self, other: &Snapshot) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }
}

/// Adds to a counter that has one writer.
#[inline(always)]
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

/// The index of the bucket of a duration.
#[inline(always)]
fn bucket(nanos: u64) -> usize {
    if nanos < LOWEST {
        return 0;
    }
    let doubling = nanos.ilog2();
    let step = (nanos >> (doubling - STEP_BITS)) as usize & ((1 << STEP_BITS) - 1);
    ((((doubling - LOWEST_BITS) as usize) << STEP_BITS) + step + 1).min(BUCKETS - 1)
}

/// The bounds between the buckets, in nanoseconds: bucket `n` counts durations from `bounds[n - 1]` on, below
/// `bounds[n]`. The last bucket has no upper bound.
pub(crate) fn bounds() -> impl Iterator<Item = u64> {
    let steps = 1 << STEP_BITS;
    (0..BUCKETS as u64 - 1).map(move |n| ((LOWEST >> STEP_BITS) * (steps + n % steps)) << (n / steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_begins_a_bucket() {
        let bounds: Vec<u64> = bounds().collect();
        assert_eq!((bounds[0], bounds[BUCKETS - 2]), (LOWEST, 1 << HIGHEST_BITS));
        for (index, bound) in bounds.iter().enumerate() {
            assert_eq!((bucket(bound - 1), bucket(*bound)), (index, index + 1));
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn a_snapshot_has_counts_and_maximum_until_a_reset() {
        let histogram = Histogram::default();
        for nanos in [5, LOWEST, 100 * LOWEST, 7] {
            histogram.count(nanos);
        }
        let snapshot = histogram.snapshot(0);
        assert_eq!(snapshot.counts.iter().sum::<u64>(), 4);
        assert_eq!((snapshot.counts[0], snapshot.counts[1]), (2, 1));
        assert_eq!(snapshot.max, 100 * LOWEST);
        histogram.reset();
        assert_eq!(histogram.snapshot(0), Snapshot::default());
    }
    #[test]
    fn a_sum_has_all_counts_and_the_greatest_maximum() {
        let [mut one, mut other] = [5, 100 * LOWEST].map(|nanos| {
            let histogram = Histogram::default();
            histogram.count(nanos);
            histogram.snapshot(nanos)
        });
        let shorter = one;
        one.merge(&other);
        other.merge(&shorter);
        assert_eq!(one, other);
        assert_eq!((one.count(), one.sum, one.max), (2, 5 + 100 * LOWEST, 100 * LOWEST));
    }
}
