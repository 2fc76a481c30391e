//! Latencies: a histogram that all connections of a run record into.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

/// 2^40 ns, 18 minutes: longer values count as this long.
const LONGEST: u64 = 1 << 40;
/// A value read back is within one per cent of the one recorded.
const SIGNIFICANT_DIGITS: u8 = 2;

#[derive(Debug)]
pub(super) struct Latencies(Mutex<Histogram<u64>>);

/// The figures of a histogram.
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

impl Latencies {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_max(LONGEST, SIGNIFICANT_DIGITS);
        Latencies(Mutex::new(histogram.expect("the bounds are in range")))
    }

    pub(super) fn record(&self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.lock().saturating_record(nanos);
    }

    pub(super) fn summary(&self) -> Summary {
        let histogram = self.lock();
        let at = |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile));
        Summary {
            count: histogram.len(),
            mean: Duration::from_nanos(histogram.mean() as u64),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: Duration::from_nanos(histogram.max()),
        }
    }

    /// No method panics with the lock held: a histogram is always consistent.
    fn lock(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_distribution() {
        let latencies = Latencies::new();
        for micros in 1..=1000 {
            latencies.record(Duration::from_micros(micros));
        }
        let summary = latencies.summary();
        let near = |value: Duration, micros: f64| (value.as_secs_f64() * 1e6 / micros - 1.0).abs() < 0.01;
        assert_eq!(summary.count, 1000);
        for (value, micros) in [
            (summary.p50, 500.0),
            (summary.p90, 900.0),
            (summary.p99, 990.0),
            (summary.p999, 999.0),
            (summary.mean, 500.5),
            (summary.max, 1000.0),
        ] {
            assert!(near(value, micros), "{summary:?}");
        }
    }

    #[test]
    fn a_value_beyond_the_range_counts_as_the_longest() {
        let latencies = Latencies::new();
        latencies.record(Duration::from_secs(3600));
        assert_eq!(latencies.summary().count, 1);
    }

    #[test]
    fn an_empty_histogram_has_no_latencies() {
        assert_eq!(Latencies::new().summary(), Summary::default());
    }
}
