//! `run_forever`: one turn after another.
//!
//! A turn has four steps:
//!
//! 1. **Poll**, or skip the poll if the last one is recent (`core/poll_policy.rs`). If callbacks are ready, the poll
//!    does not block. Otherwise it waits without the GIL until the next deadline (`poll.rs`, `core/plan.rs`).
//! 2. **Timers**: queue the timers that are due. As in asyncio, they come before the callbacks that this turn
//!    schedules.
//! 3. **Dispatch** each event to the transport, listener or callback of its token (`dispatch.rs`). As in asyncio,
//!    callbacks that were ready before the poll run first.
//! 4. **Run** the timers that were due; without events, all ready callbacks, in order (`run.rs`). The callbacks that
//!    these schedule run in the next turn. If there were only events to handle, the next turn follows without a poll.
//!
//! A callback or an event begins when the writes of the one before have left (`Core::end_step`).
//!
//! A fatal error (`SystemExit`, `KeyboardInterrupt`) ends the run in the middle of a turn. Events that were not
//! dispatched and callbacks that did not run stay queued for the next run.

use std::mem;

use super::core::inbox::{Call, Message, THROUGH_INBOX};
use super::core::run_state::Phase;
use super::core::{Core, Entry};
use super::dispatch::dispatch_all;
use super::handle::layout::HandleRef;
use super::observe::probe::{self, Batch};
use super::poll::poll;
use super::run::run_next;
use crate::capi::error::Outcome;
use crate::capi::fallible::interned;
use crate::capi::{Fatal, Raised, Ref};
use crate::clock::monotonic_nanos;
use crate::reactor::{Event, Readiness};

/// How many callbacks of a large batch are timed together, unless the last ones took long.
const PART: usize = 16;

/// Runs until `stop()`, a fatal error, or the turn in which a tool replaces a part of the iteration.
pub(crate) fn run_forever(core: &Core) -> Result<(), Fatal> {
    let running = Running::new(core);
    let mut clock = 0;
    let outcome = loop {
        if let Err(fatal) = turn(core, &mut clock) {
            break Err(fatal);
        }
        if core.state.ends_run() {
            break probe::last_turn_ends(core);
        }
    };
    drop(running);
    // If both have failed, the first error is raised.
    let mut last = Outcome::default();
    last.note(outcome);
    last.note(core.flush_all());
    last.finish()
}

/// A run of the loop. Its end is recorded even after a panic.
struct Running<'a>(&'a Core);

impl Running<'_> {
    fn new(core: &Core) -> Running<'_> {
        core.state.enter(Phase::Running);
        core.state.replaced.set(false);
        core.instrumentation.set_between_runs(false);
        core.inbox.set_running(true);
        core.polls.begin_run();
        core.begin_turns();
        probe::run_begins(core);
        Running(core)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let core = self.0;
        core.state.enter(Phase::Idle);
        core.instrumentation.set_between_runs(true);
        core.inbox.set_running(false);
        if core.is_parents() {
            core.process.set_in_use();
        }
        core.timers.track_shared();
        core.end_turns();
        probe::run_ends(core);
    }
}

/// `clock` is the time at the end of the last turn if that is known, else 0; the turn replaces it.
#[inline(always)]
fn turn(core: &Core, clock: &mut u64) -> Result<(), Fatal> {
    // What was queued between two steps, such as before the run.
    core.flush_all()?;
    let now = poll_or_skip(core, mem::take(clock))?;
    if !core.io.events.is_empty() {
        run_with_events(core, now)?;
    } else {
        make_due_timers_ready(core, now)?;
        let count = core.ready.len();
        *clock = run_batch(core, count, true)?;
    }
    Ok(())
}

/// Step 1. Returns the time after the poll, or of the beginning of the turn.
#[inline(always)]
fn poll_or_skip(core: &Core, clock: u64) -> Result<u64, Fatal> {
    let now = if clock != 0 { clock } else { monotonic_nanos() };
    let reread = core.polls.reread_token.get().and_then(|_| core.polls.reread_token.take());
    let skip = core.polls.may_skip(now, !core.ready.is_empty(), reread.is_some())
        && core.fds.callbacks() == 0
        && !core.custom_clock();
    let after = if skip {
        core.polls.note_skip();
        if let Some(token) = reread {
            core.io.events.push(Event { token, readiness: Readiness::READABLE });
        }
        probe::turn_goes_on(core, now);
        now
    } else {
        probe::turn_ends(core, now)?;
        let after = poll(core, now)?;
        core.polls.note_poll(after);
        probe::turn_begins(core, after);
        after
    };
    // A source that calls `requeue` after this is called in the next turn.
    core.io.queue_requeued();
    deliver_messages(core)?;
    core.polls.note_events(!core.io.events.is_empty(), skip);
    Ok(after)
}

/// Delivers the messages of other threads.
#[inline(always)]
pub(super) fn deliver_messages(core: &Core) -> Result<(), Fatal> {
    // In this order: see `SideList`.
    let messages = core.inbox.take();
    take_calls(core);
    match messages {
        Some(messages) => deliver(core, messages),
        None => Ok(()),
    }
}

/// Pushes the callbacks into the ready queue that other threads have sent. Called before the loop pushes one of its own.
#[inline(always)]
pub(crate) fn take_calls(core: &Core) {
    if THROUGH_INBOX && let Some(calls) = core.inbox.take_calls() {
        push_calls(core, calls);
    }
}

#[inline(never)]
fn push_calls(core: &Core, calls: Vec<Call>) {
    let event_loop = core.this();
    for call in calls {
        if let Ok(handle) = HandleRef::new(Ref::from(call.into_bound(event_loop.py()))) {
            core.ready.push(Entry::Handle(handle));
        }
    }
    core.inbox.set_backlog(core.ready.len());
}

#[inline(never)]
fn deliver(core: &Core, messages: Vec<Message>) -> Result<(), Fatal> {
    probe::messages_come(core, messages.len());
    let event_loop = core.this();
    let mut outcome = Outcome::default();
    for message in messages {
        outcome.note(message(event_loop.py()));
    }
    outcome.finish()
}

/// Rounding tolerance for custom clocks, in seconds: if a test advances a clock by exactly the time until a deadline,
/// the sum may be slightly too small. It is asyncio's, and a tool may set it to that of its clock.
#[cold]
fn resolution(core: &Core) -> Result<f64, Raised> {
    core.borrow().getattr(&interned("_clock_resolution")?)?.to_float()
}

/// Step 2. Moves the timers that are due to the ready queue, ordered by their deadlines.
#[inline(always)]
pub(crate) fn make_due_timers_ready(core: &Core, now: u64) -> Result<(), Fatal> {
    let Some(next) = core.timers.next() else { return Ok(()) };
    let now = if core.custom_clock() {
        core.now().and_then(|now| Ok(now + resolution(core)?)).map_err(|Raised| Fatal)?
    } else {
        now as f64 / 1e9
    };
    if next > now {
        return Ok(());
    }
    while let Some((due, handle)) = core.timers.pop_due(now) {
        probe::timer_is_due(core, now - due);
        core.ready.push(Entry::Handle(handle));
    }
    Ok(())
}

/// Steps 2 to 4 of a turn that has events.
#[inline(always)]
fn run_with_events(core: &Core, now: u64) -> Result<(), Fatal> {
    let earlier = core.ready.len();
    make_due_timers_ready(core, now)?;
    let due = core.ready.len() - earlier;
    if earlier > 0 {
        run_behind_events(core, earlier)?;
    }
    core.state.enter(Phase::Dispatching);
    let dispatched = dispatch_all(core);
    core.state.enter(Phase::Running);
    dispatched?;
    run_behind_events(core, due)?;
    if earlier == 0 && !core.ready.is_empty() && !core.state.ends_run() && core.fds.callbacks() == 0 {
        // This is the next turn, with its timers but without a poll: all ready callbacks were scheduled by events of
        // the poll above.
        if core.timers.next().is_some() {
            make_due_timers_ready(core, monotonic_nanos())?;
        }
        run_behind_events(core, core.ready.len())?;
    }
    Ok(())
}

/// Runs the first `count` entries of the ready queue, after events.
#[inline(always)]
fn run_behind_events(core: &Core, count: usize) -> Result<(), Fatal> {
    #[inline(never)]
    fn run_some(core: &Core, count: usize) -> Result<(), Fatal> {
        run_batch(core, count, false).map(drop)
    }
    if count == 0 { Ok(()) } else { run_some(core, count) }
}

/// Runs the first `count` entries of the ready queue, which are the `only` work of the turn or not. Returns the time
/// after them if it is known, else 0.
#[inline(always)]
fn run_batch(core: &Core, count: usize, only: bool) -> Result<u64, Fatal> {
    let mut batch = probe::batch_begins(core, count, only);
    if let Batch::Parts(_) = batch {
        run_parts(core, count, &mut batch)?;
    } else {
        run_next(core, count, &mut batch)?;
    }
    Ok(probe::batch_ends(core, &batch))
}

#[inline(never)]
fn run_parts(core: &Core, mut count: usize, batch: &mut Batch) -> Result<(), Fatal> {
    let mut most = PART;
    while count > 0 {
        let part = count.min(most);
        run_next(core, part, batch)?;
        most = if probe::part_ends(core, batch)? { 1 } else { PART };
        count -= part;
    }
    Ok(())
}
