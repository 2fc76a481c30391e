//! Writes the figures of a published loop that are not counters: to the shared page, around polls.

use super::core::Core;
use super::core::fd_table::SourceKind;
use super::core::page::Slot;
use crate::clock::monotonic_nanos;

/// To count the transports takes time, so they are counted once in this interval, in nanoseconds.
const INTERVAL: u64 = 100_000_000;
/// Before the loop waits, they are counted if this many times the duration of the last count have passed.
const REST: u64 = 50;

/// Called before each poll of a published loop, so that a reader can tell a loop that waits from one that is blocked.
#[cold]
pub(super) fn before_poll(core: &Core, slot: &Slot, now: u64) {
    slot.ready.set(core.ready.len() as u64);
    slot.timers.set(core.timers.len() as u64);
    slot.executor_jobs.set(core.inbox.jobs().into());
    slot.lookups.set(core.inbox.lookups().into());
    let since = now.saturating_sub(slot.counted_at.get());
    if since >= INTERVAL || core.is_idle() && since >= REST * slot.counting.get() {
        count_transports(core, slot);
    }
    slot.begin_poll(now);
}

#[cold]
pub(super) fn after_poll(slot: &Slot) {
    slot.end_poll(monotonic_nanos());
}

fn count_transports(core: &Core, slot: &Slot) {
    let start = monotonic_nanos();
    let statuses = core.fds.statuses();
    for ((kind, _), gauge) in SourceKind::COUNTED.into_iter().zip(&slot.transports) {
        gauge.set(statuses.iter().filter(|status| status.kind == kind).count() as u64);
    }
    slot.write_buffer_bytes.set(statuses.iter().map(|status| status.unsent as u64).sum());
    slot.paused_writers.set(statuses.iter().filter(|status| status.writing_paused).count() as u64);
    slot.paused_readers.set(statuses.iter().filter(|status| status.reading_paused).count() as u64);
    let end = monotonic_nanos();
    slot.counting.set(end - start);
    slot.counted_at.set(end);
}
