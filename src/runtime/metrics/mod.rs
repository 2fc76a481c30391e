//! The counters of a runtime.
//!
//! Each worker counts for itself, without atomic read-modify-writes, on cache lines that only it writes. A
//! snapshot adds the workers up, so its numbers may be a moment apart from each other.
//!
//! The delay from a wake to the poll is that of a sample (`sampler.rs`).

mod measures;
mod table;

pub use measures::Histogram;
pub(super) use measures::{Durations, SpinCounters};
pub(super) use table::{Counters, Workers};
pub use table::{Metrics, WorkerMetrics};
