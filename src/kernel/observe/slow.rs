//! Finds the callback or event that makes a turn slow. The last slow ones are kept; they are logged if the program or
//! the environment has set a limit.
//!
//! The length of each turn is known (`core/turn_meter.rs`), but not which of its callbacks took the time. So in small
//! batches the processor's tick counter is read after each callback. Of a large batch only parts are timed; if a part
//! was slow, the callbacks of later large batches are timed one by one for a while. A turn with one callback reads the
//! clock after the callback instead of when the next turn begins.

use super::super::core::Core;
use super::super::core::probe::registry;
use super::super::core::probe::turn_meter::{Batch, Laps};
use super::recording;
use crate::capi::error::unless_raised;
use crate::capi::inspect::{boolean, float, integer};
use crate::capi::{Fatal, Raised, Ref};
use crate::clock::{monotonic_nanos, ticks};
use crate::histogram::LOWEST;

/// A callback of the ready queue has returned, or a native object has handled an event.
#[inline(always)]
pub(in crate::kernel) fn note(core: &Core, work: &Ref, batch: &mut Batch) -> Result<(), Raised> {
    // First, because a chain of callbacks asks each time.
    if let Batch::One(end) = batch {
        let now = monotonic_nanos();
        *end = now;
        let nanos = core.probe.meter.elapsed(now);
        return if core.probe.meter.is_noted(nanos) { report(core, now, nanos, Some(work)) } else { Ok(()) };
    }
    let Batch::Each(laps) = batch else { return Ok(()) };
    note_lap(core, work, laps)
}

/// The same, in a batch whose items are timed one by one.
#[inline(always)]
pub(in crate::kernel) fn note_lap(core: &Core, work: &Ref, laps: &mut Laps) -> Result<(), Raised> {
    match laps.next() {
        None => Ok(()),
        Some(taken) => long_item(core, taken, Some(work)),
    }
}

/// A part of a large batch has ended. Did it take long?
pub(in crate::kernel) fn note_part(core: &Core, batch: &mut Batch) -> Result<bool, Fatal> {
    let Batch::Parts(laps) = batch else { return Ok(false) };
    match laps.next() {
        None => Ok(false),
        Some(taken) => long_item(core, taken, None).map(|()| true).map_err(|Raised| Fatal),
    }
}

#[cold]
fn long_item(core: &Core, taken: u64, work: Option<&Ref>) -> Result<(), Raised> {
    let now = monotonic_nanos();
    // A processor's counter may differ from another's, but no item is longer than its turn.
    let nanos = core.probe.meter.nanos(taken, now, ticks()).min(core.probe.meter.elapsed(now));
    if !core.probe.meter.is_noted(nanos) {
        return Ok(());
    }
    match work {
        Some(work) => report(core, now, nanos, Some(work)),
        None => {
            core.probe.meter.name_each(now);
            Ok(())
        }
    }
}

/// A turn with a poll begins its work at `now`. Counts how long that work has been ready.
#[inline(always)]
pub(in crate::kernel) fn note_delay(core: &Core, now: u64) {
    let late = match core.timers.next() {
        // The cast makes zero of a deadline that is not over.
        Some(deadline) if !core.custom_clock() => (now as f64 - deadline * 1e9) as u64,
        _ => 0,
    };
    let delay = core.probe.meter.wait().max(late);
    core.probe.counters.delay.sum.add(delay);
    core.probe.counters.delay.note(delay);
}

/// A turn ends at `now`. Counts its length.
#[inline(always)]
pub(in crate::kernel) fn end_turn(core: &Core, now: u64) -> Result<(), Fatal> {
    let (length, counters) = (core.probe.meter.elapsed(now), core.probe.counters);
    let turns = counters.turns.get();
    if counters.ended_turns.get() == turns {
        // A run has begun, and polls for the first time.
        return Ok(());
    }
    counters.ended_turns.set(turns);
    if length >= LOWEST { end_long_turn(core, now, length) } else { Ok(()) }
}

#[cold]
fn end_long_turn(core: &Core, now: u64, length: u64) -> Result<(), Fatal> {
    let counters = &core.probe.counters;
    let waited = core.probe.meter.take_waited(now, ticks());
    if waited > core.probe.meter.wait() {
        counters.late_items.add(1);
        counters.delay.sum.add(waited);
        counters.delay.note(waited);
    }
    counters.turn_length.note(length);
    if !core.probe.meter.is_slow(length) {
        return Ok(());
    }
    counters.slow_turns.add(1);
    recording::slow_turn(core, length)?;
    if core.probe.meter.is_named(counters.turns.get()) {
        return Ok(());
    }
    report(core, now, length, None).map_err(|Raised| Fatal)
}

/// Keeps what took long: the turn, or one of its callbacks. Logs it if it is slow and somebody has asked for that. Other
/// errors than fatal ones are printed.
#[cold]
fn report(core: &Core, now: u64, nanos: u64, work: Option<&Ref>) -> Result<(), Raised> {
    let slow = core.probe.meter.is_slow(nanos);
    if !slow && !registry::is_watched() {
        return Ok(());
    }
    if slow && work.is_some() {
        core.probe.meter.note_named(core.turn_number());
    }
    let (none, is_slow) = (Ref::none(), boolean(slow));
    let work = work.unwrap_or(&none);
    // If memory has run out, nothing is kept or logged.
    let Some(length) = unless_raised(integer(nanos as i64)) else { return Ok(()) };
    let arguments = [core.borrow(), length.borrow(), work.borrow(), is_slow.borrow()];
    core.support("keep_slow", &arguments).map_err(|Fatal| Raised)?;
    if !slow {
        return Ok(());
    }
    let Some(unreported) = core.probe.meter.may_report(now) else { return Ok(()) };
    let (Some(seconds), Some(unreported)) =
        (unless_raised(float(nanos as f64 / 1e9)), unless_raised(integer(unreported as i64)))
    else {
        return Ok(());
    };
    let arguments = [core.borrow(), seconds.borrow(), work.borrow(), unreported.borrow()];
    core.support("slow_turn", &arguments).map_err(|Fatal| Raised)
}
