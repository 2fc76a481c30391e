//! A histogram of durations: log-linear buckets, 128 to each power of two, so that a value read back is within
//! 0.8 % of the one recorded. Recording is one relaxed increment; any thread may record.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const SUB_BITS: u32 = 7;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// 2^40 ns, 18 minutes: longer values count as this long.
const MAX_BITS: u32 = 40;
const BUCKETS: usize = ((MAX_BITS - SUB_BITS) as usize + 1) * SUB_BUCKETS;

/// Counts of durations by bucket.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

/// What a histogram says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    pub count: u64,
    pub mean: Duration,
    pub p50: Duration,
    pub p90: Duration,
    pub p99: Duration,
    pub p999: Duration,
    pub max: Duration,
}

impl Histogram {
    pub(super) fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Histogram { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    pub(super) fn record(&self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX).min((1 << MAX_BITS) - 1);
        self.buckets[bucket_of(nanos)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanos, Relaxed);
        self.max.fetch_max(nanos, Relaxed);
    }

    /// Reads everything; exact once nobody records any more.
    pub(super) fn summary(&self) -> Summary {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return Summary::default();
        }
        let max = self.max.load(Relaxed);
        let quantile = |q: f64| {
            let rank = ((count as f64 * q).ceil() as u64).clamp(1, count);
            let mut seen = 0;
            let bucket = counts.iter().position(|&n| {
                seen += n;
                seen >= rank
            });
            Duration::from_nanos(middle_of(bucket.unwrap_or(BUCKETS - 1)).min(max))
        };
        Summary {
            count,
            mean: Duration::from_nanos(self.sum.load(Relaxed) / count),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: Duration::from_nanos(max),
        }
    }
}

/// Below 2^7 each value has its bucket; above, the seven bits that follow the leading one choose it.
fn bucket_of(nanos: u64) -> usize {
    if nanos < SUB_BUCKETS as u64 {
        return nanos as usize;
    }
    let shift = u64::BITS - 1 - nanos.leading_zeros() - SUB_BITS;
    (shift as usize + 1) * SUB_BUCKETS + (nanos >> shift) as usize % SUB_BUCKETS
}

/// The middle of a bucket's values.
fn middle_of(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64;
    }
    let shift = bucket / SUB_BUCKETS - 1;
    let lowest = ((SUB_BUCKETS + bucket % SUB_BUCKETS) as u64) << shift;
    lowest + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_back_within_a_hundredth() {
        let mut nanos = 1;
        while nanos < 1 << MAX_BITS {
            let back = middle_of(bucket_of(nanos));
            assert!(back.abs_diff(nanos) as f64 <= nanos as f64 * 0.008, "{nanos} came back as {back}");
            nanos += 1 + nanos / 97;
        }
        assert!(bucket_of((1 << MAX_BITS) - 1) < BUCKETS);
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let histogram = Histogram::new();
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        let summary = histogram.summary();
        let near = |value: Duration, micros: f64| (value.as_secs_f64() * 1e6 / micros - 1.0).abs() < 0.01;
        assert_eq!(summary.count, 1000);
        assert!(
            near(summary.p50, 500.0) && near(summary.p90, 900.0) && near(summary.p99, 990.0),
            "{summary:?}"
        );
        assert!(near(summary.p999, 999.0) && near(summary.mean, 500.5), "{summary:?}");
        assert_eq!(summary.max, Duration::from_micros(1000));
    }

    #[test]
    fn an_empty_histogram_says_nothing() {
        assert_eq!(Histogram::new().summary(), Summary::default());
    }
}
