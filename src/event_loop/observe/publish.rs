//! Writes what a loop does not count while it runs: its gauges for `loop.metrics()`, and around the polls of a
//! published loop, so that a reader of the shared page has them.

use super::super::core::Core;
use super::super::core::fd_table::SourceKind;
use super::super::core::probe::page::Slot;
use crate::clock::monotonic_nanos;

/// To count the transports takes time, so they are counted once in this interval, in nanoseconds.
const INTERVAL: u64 = 100_000_000;
/// Before the loop waits, they are counted if this many times the duration of the last count have passed.
const REST: u64 = 50;

/// Called before each poll of a published loop, so that a reader can tell a loop that waits from one that is blocked.
#[cold]
pub(in crate::event_loop) fn before_poll(core: &Core, slot: &Slot, now: u64) {
    count_entries(core);
    let since = now.saturating_sub(slot.counted_at.get());
    if since >= INTERVAL || core.is_idle() && since >= REST * slot.counting.get() {
        let start = monotonic_nanos();
        count_transports(core);
        let end = monotonic_nanos();
        slot.counting.set(end - start);
        slot.counted_at.set(end);
    }
    slot.begin_poll(now);
}

#[cold]
pub(in crate::event_loop) fn after_poll(slot: &Slot) {
    slot.end_poll(monotonic_nanos());
}

/// Brings the gauges up to date. The caller is in a section of the loop.
pub(in crate::event_loop) fn count_all(core: &Core) {
    count_entries(core);
    count_transports(core);
}

fn count_entries(core: &Core) {
    let gauges = &core.probe.counters;
    gauges.ready.set(core.ready.len() as u64);
    gauges.timers.set(core.timers.len() as u64);
    gauges.executor_jobs.set(core.inbox.jobs().into());
    gauges.lookups.set(core.inbox.lookups().into());
}

fn count_transports(core: &Core) {
    let (gauges, statuses) = (&core.probe.counters, core.fds.statuses());
    for ((kind, _), gauge) in SourceKind::COUNTED.into_iter().zip(&gauges.transports.0) {
        gauge.set(statuses.iter().filter(|status| status.kind == kind).count() as u64);
    }
    gauges.write_buffer_bytes.set(statuses.iter().map(|status| status.unsent as u64).sum());
    gauges.paused_writers.set(statuses.iter().filter(|status| status.writing_paused).count() as u64);
    gauges.paused_readers.set(statuses.iter().filter(|status| status.reading_paused).count() as u64);
}
