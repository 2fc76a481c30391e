//! Counts what a loop does not count while it runs: the gauges of its metrics.

use super::super::core::Core;
use super::super::core::fd_table::SourceKind;
use crate::capi::Fatal;
use crate::clock::monotonic_nanos;

/// Somebody who has no GIL has asked for the gauges.
#[cold]
pub(in crate::kernel) fn count(core: &Core) -> Result<(), Fatal> {
    core.support("count_gauges", &[core.borrow()])
}

/// Brings the gauges up to date. `queued` jobs of the default executor have not begun to run. The caller is in a
/// section of the loop.
pub(crate) fn count_all(core: &Core, queued: u64) {
    let (gauges, statuses) = (core.probe.counters, core.fds.statuses());
    gauges.ready.set(core.ready.len() as u64);
    gauges.timers.set(core.timers.len() as u64);
    gauges.executor_jobs.set(core.inbox.jobs().into());
    gauges.executor_queued.set(queued);
    gauges.lookups.set(core.inbox.lookups().into());
    for ((kind, _), gauge) in SourceKind::COUNTED.into_iter().zip(&gauges.transports.0) {
        gauge.set(statuses.iter().filter(|status| status.kind == kind).count() as u64);
    }
    gauges.write_buffer_bytes.set(statuses.iter().map(|status| status.unsent as u64).sum());
    gauges.paused_writers.set(statuses.iter().filter(|status| status.writing_paused).count() as u64);
    gauges.paused_readers.set(statuses.iter().filter(|status| status.reading_paused).count() as u64);
    core.probe.registered.counted(monotonic_nanos());
}
