//! The hooks of the kernel: where a run, a turn, a poll, a batch of callbacks or an event begins or ends, the kernel
//! calls one of these functions, and names nothing else that observes.

use std::sync::atomic::Ordering::Release;
use std::sync::atomic::fence;

use super::super::core::fd_table::descriptor;
use super::super::core::probe::heartbeat::NOBODY;
use super::super::core::probe::metrics::Counters;
use super::super::core::probe::registry::Asked;
pub(in crate::kernel) use super::super::core::probe::turn_meter::{Batch, Laps};
use super::super::core::{Core, Entry};
use super::{busy_waits, gauges, labels, recording, slow};
use crate::capi::error::{undisturbed, unless_raised};
use crate::capi::future::is_done;
use crate::capi::imports::imports;
use crate::capi::{Fatal, Raised, Ref};
use crate::clock::{monotonic_nanos, ticks};
use crate::reactor::Event;
use crate::recorder::event::{Kind, duration};

// -- runs and turns

#[inline(always)]
pub(in crate::kernel) fn run_begins(core: &Core) {
    let (probe, now) = (&core.probe, monotonic_nanos());
    probe.counters.started.set(now);
    probe.meter.begin_run(now, ticks());
    probe.busy_waits.begin_run(now);
    let heartbeat = &probe.registered.entry().heartbeat;
    heartbeat.begin(core.object());
    probe.heartbeat.set(heartbeat);
    recording::enter(core);
    labels::enter(core);
}

/// The last turn of a run has ended.
#[inline(always)]
pub(in crate::kernel) fn last_turn_ends(core: &Core) -> Result<(), Fatal> {
    slow::end_turn(core, monotonic_nanos())
}

#[inline(always)]
pub(in crate::kernel) fn run_ends(core: &Core) {
    let counters = &core.probe.counters;
    counters.running.set(counters.running_at(monotonic_nanos()));
    counters.started.set(0);
    recording::leave(core);
    labels::leave(core);
    busy_waits::leave(core);
    core.probe.heartbeat.replace(&NOBODY).end();
}

/// A turn without a poll begins. It is not measured: since the last poll all turns together were short.
#[inline(always)]
pub(in crate::kernel) fn turn_goes_on(core: &Core, now: u64) {
    core.probe.meter.begin_turn(now);
    core.probe.counters.turns.add(1);
}

/// A turn ends, and the next one is about to poll.
#[inline(always)]
pub(in crate::kernel) fn turn_ends(core: &Core, now: u64) -> Result<(), Fatal> {
    let probe = &core.probe;
    probe.heartbeat.get().turn(now);
    slow::end_turn(core, now)?;
    if probe.busy_waits.is_due(now) {
        busy_waits::look(core, now);
    }
    if probe.registered.is_asked() {
        answer(core)?;
    }
    // Callbacks that are ready were scheduled in the last turn, and events that are ready came during it.
    probe.meter.set_wait(probe.meter.elapsed(now));
    probe.recorder.note(Kind::Poll, 0);
    Ok(())
}

/// Somebody who has no GIL has asked for something.
#[cold]
fn answer(core: &Core) -> Result<(), Fatal> {
    recording::asked(core);
    if core.probe.registered.is_asked_for(Asked::Labels) {
        labels::turn_ends(core);
    }
    if core.probe.registered.is_asked_for(Asked::Gauges) { gauges::count(core) } else { Ok(()) }
}

/// An event may have come before the loop was woken for a question, so the turn that begins may do much. It counts.
#[cold]
fn asked_while_it_waited(core: &Core) {
    recording::asked(core);
    labels::wait_ended(core);
}

/// A turn begins its work: the poll is over.
#[inline(always)]
pub(in crate::kernel) fn turn_begins(core: &Core, now: u64) {
    core.probe.meter.begin_turn(now);
    slow::note_delay(core, now);
    core.probe.counters.turns.add(1);
}

/// Python code steps a turn. Such turns are not measured.
pub(in crate::kernel) fn turn_is_stepped(core: &Core, thread: u64) {
    let counters = core.probe.counters;
    for turns in [&counters.turns, &counters.ended_turns, &counters.stepped_turns] {
        turns.add(1);
    }
    recording::refresh(core, thread);
    core.probe.recorder.note(Kind::Poll, 0);
}

/// Python code steps the loop: for as long as it does, the loop is busy.
pub(crate) fn is_busy(core: &Core) {
    let now = monotonic_nanos();
    let waited = core.probe.registered.heartbeat.beat().waited(now);
    core.probe.heartbeat.get().turn(now);
    count_wait(core.probe.counters, waited);
}

/// Python code waits for the loop's events.
pub(crate) fn is_idle(core: &Core) {
    core.probe.heartbeat.get().idle(monotonic_nanos());
}

// -- polls

/// Nothing that the next turn handles has been ready before `now`.
#[inline(always)]
pub(in crate::kernel) fn nothing_waited(core: &Core) {
    core.probe.meter.set_wait(0);
}

/// The loop has polled with the GIL.
#[inline(always)]
pub(in crate::kernel) fn polled_with_gil(core: &Core) {
    core.probe.counters.polls.add(1);
    core.probe.recorder.note(Kind::Polled, 0);
}

/// The loop has waited for so many nanoseconds with the GIL. After such a wait, nothing had been ready before.
#[inline(always)]
pub(in crate::kernel) fn waited_with_gil(core: &Core, nanos: u64, has_waited: bool) {
    core.probe.counters.idle.add(nanos);
    if has_waited {
        nothing_waited(core);
    }
}

/// The loop is about to poll without the GIL, at `now`. The function that is returned notes when the poll has ended. It
/// is called without the GIL, but in a section of the loop.
#[inline(always)]
pub(in crate::kernel) fn leaves_gil(core: &Core, now: u64) -> impl Fn(u64) + use<> {
    let (counters, heartbeat) = (core.probe.counters, core.probe.heartbeat.get());
    counters.polls.add(1);
    heartbeat.idle(now);
    move |end| {
        heartbeat.awaits_gil(end);
        count_wait(counters, end - now);
    }
}

/// Counts a wait that the heartbeat has reported so far, and reports no more.
#[inline(always)]
fn count_wait(counters: &Counters, nanos: u64) {
    // Ordering: Release, pairs with the Acquire fence in `Registered::figures`. Who finds this wait counted also finds
    // that the loop waits no more.
    fence(Release);
    counters.idle.add(nanos);
}

/// The loop has polled without the GIL up to `end`, and has the GIL again at `back`. If it `has_waited`, nothing had
/// been ready before.
#[inline(always)]
pub(in crate::kernel) fn has_gil_again(core: &Core, end: u64, back: u64, has_waited: bool) {
    let (counters, meter, waited) = (&core.probe.counters, &core.probe.meter, back - end);
    core.probe.heartbeat.get().turn(back);
    core.probe.recorder.note_with(Kind::Polled, || duration(waited + 1));
    counters.blocking_polls.add(1);
    counters.gil_wait.sum.add(waited);
    counters.gil_wait.note(waited);
    meter.set_wait(if has_waited { 0 } else { meter.wait() } + waited);
    if core.probe.registered.is_asked() {
        asked_while_it_waited(core);
    }
}

/// A wait begins with a spin. The function that is returned notes whether the spin has found an event, and how many
/// nanoseconds it has taken. It is called without the GIL, but in a section of the loop.
pub(in crate::kernel) fn spin_begins(core: &Core) -> impl Fn(bool, u64) + '_ {
    let counters = core.probe.counters;
    move |found, nanos| {
        counters.spins.add(1);
        if found {
            counters.spin_hits.add(1);
        } else {
            counters.spin_lost.add(nanos);
        }
    }
}

/// A poll has found so many events.
#[inline(always)]
pub(in crate::kernel) fn found_events(core: &Core, count: usize) {
    core.probe.counters.io_events.add(count as u64);
}

// -- what a turn handles

/// Messages of other threads are delivered.
pub(in crate::kernel) fn messages_come(core: &Core, count: usize) {
    core.probe.counters.messages.add(count as u64);
}

/// A timer is due, so many seconds after its deadline.
#[inline(always)]
pub(in crate::kernel) fn timer_is_due(core: &Core, late: f64) {
    recording::timer(core, late);
    core.probe.counters.timers_fired.add(1);
}

/// A batch of so many callbacks begins. If it is the `only` one, the turn has done nothing before it.
#[inline(always)]
pub(in crate::kernel) fn batch_begins(core: &Core, count: usize, only: bool) -> Batch {
    core.probe.counters.callbacks.add(count as u64);
    let meter = &core.probe.meter;
    if only { meter.begin_only_batch(count) } else { meter.begin_batch(count) }
}

/// A part of a large batch has ended. Did it take long?
pub(in crate::kernel) fn part_ends(core: &Core, batch: &mut Batch) -> Result<bool, Fatal> {
    slow::note_part(core, batch)
}

/// The batch has ended. Returns the time if it is known, else 0.
#[inline(always)]
pub(in crate::kernel) fn batch_ends(core: &Core, batch: &Batch) -> u64 {
    core.probe.meter.end_batch(batch)
}

/// Calls `run`, which runs an entry that somebody has asked to see.
#[cold]
pub(in crate::kernel) fn around_entry(
    core: &Core,
    entry: Entry,
    run: impl FnOnce(Entry) -> Result<(), Fatal>,
) -> Result<(), Fatal> {
    if core.instrumentation.is_sampled() {
        busy_waits::note(core, &entry)?;
    }
    recording::entry(core, entry.subject());
    if core.instrumentation.is_labelled() {
        labels::entry(core, &entry);
    }
    let task = core.instrumentation.times_steps().then(|| task_of(&entry)).flatten();
    let ran = run(entry);
    if let Some(task) = task {
        undisturbed(|| {
            let done = unless_raised(is_done(&task)).unwrap_or(false);
            // If memory has run out, nothing is kept.
            let _ = unless_raised(core.probe.step_times.note(&task, done, monotonic_nanos()));
        });
    }
    ran
}

/// The task of which the entry is a step: the callback is a method of it.
fn task_of(entry: &Entry) -> Option<Ref> {
    let callback = match entry {
        Entry::Call { callback, .. } => callback.clone_ref(),
        Entry::Handle(handle) => handle.callback()?,
        Entry::Native { .. } | Entry::Foreign(_) => return None,
    };
    if !callback.has_immutable_class() {
        return None;
    }
    let task = unless_raised(callback.getattr(&imports().__self__))?;
    task.is_instance_of(&imports().task).then_some(task)
}

/// The entry has run: its callback has returned, or its native function.
#[inline(always)]
pub(in crate::kernel) fn entry_ran(core: &Core, work: &Ref, batch: &mut Batch) -> Result<(), Raised> {
    slow::note(core, work, batch)
}

/// The first event of a poll is about to be handled.
#[inline(always)]
pub(in crate::kernel) fn events_begin() -> Laps {
    Laps::begin()
}

/// An event is about to be handled, and somebody has asked to see it.
#[cold]
pub(in crate::kernel) fn event_comes(core: &Core, event: Event) {
    recording::ready(core, descriptor(event.token));
    if core.instrumentation.is_labelled() {
        labels::event(core);
    }
}

/// A native object has handled an event.
#[inline(always)]
pub(in crate::kernel) fn event_ends(core: &Core, object: &Ref, laps: &mut Laps) -> Result<(), Fatal> {
    slow::note_lap(core, object, laps).map_err(|Raised| Fatal)
}

/// A callback of a watched descriptor is about to run.
#[inline(always)]
pub(in crate::kernel) fn callback_comes(core: &Core) {
    core.probe.counters.callbacks.add(1);
}

/// The waiters of a descriptor are called: its event is a batch of its own. `call` calls them.
#[inline(always)]
pub(in crate::kernel) fn waiters_of_event<R>(laps: &mut Laps, call: impl FnOnce(&mut Batch) -> R) -> R {
    let mut batch = Batch::Each(*laps);
    let called = call(&mut batch);
    if let Batch::Each(after) = batch {
        *laps = after;
    }
    called
}

/// All events have been handled.
#[inline(always)]
pub(in crate::kernel) fn events_end(core: &Core, laps: &Laps) {
    core.probe.meter.note_waited(laps);
}
