//! `run_forever`: one turn after another.
//!
//! A turn has five steps:
//!
//! 1. **Poll**, or skip the poll if the last one is recent (`core/poll_policy.rs` says when). With callbacks ready the
//!    poll does not block; otherwise it waits until the next deadline without the GIL (`poll.rs`).
//! 2. **Timers**: those that are due go to the ready queue. In asyncio they come before what this turn schedules.
//! 3. **Dispatch** the events: straight to the transport, listener or callback behind the token (`dispatch.rs`). What was
//!    ready before the poll runs first, as in asyncio.
//! 4. **Run** the timers that were due, or all that is ready if there was no event, in order (`run.rs`). What all of these
//!    schedule runs in the next turn; without a poll in between if the events were all there was to do.
//! 5. **Flush** what the turn has written, before the next poll can block.
//!
//! A fatal error (`SystemExit`, `KeyboardInterrupt`) leaves in the middle. What was not dispatched or run stays queued for
//! the next run.

use super::clock::monotonic_nanos;
use super::core::inbox::Message;
use super::core::metrics::add;
use super::core::run_state::Phase;
use super::core::{Core, Entry};
use super::dispatch::dispatch_all;
use super::poll::poll;
use super::run::run;
use crate::capi::error::Outcome;
use crate::capi::{Fatal, Raised};
use crate::reactor::{Event, Readiness};

/// Rounding tolerance for custom clocks, in seconds, as in asyncio: a clock that is moved on by exactly what is left until
/// a deadline may miss it by a rounding.
const CUSTOM_RESOLUTION: f64 = 1e-9;

/// Runs until `stop()` or a fatal error.
pub(crate) fn run_forever(core: &Core) -> Result<(), Fatal> {
    let running = Running::new(core);
    let outcome = loop {
        if let Err(fatal) = turn(core) {
            break Err(fatal);
        }
        if core.state.stopping.get() {
            break Ok(());
        }
    };
    drop(running);
    // Two fatal errors at once: the first one wins.
    let mut last = Outcome::default();
    last.note(outcome);
    last.note(core.flush_all());
    last.finish()
}

/// The time of a run: its end is noted even after a panic.
struct Running<'a>(&'a Core);

impl Running<'_> {
    fn new(core: &Core) -> Running<'_> {
        core.counters.started.set(monotonic_nanos());
        core.state.enter(Phase::Running);
        core.polls.begin_run();
        core.begin_turns();
        Running(core)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let core = self.0;
        core.state.enter(Phase::Idle);
        if core.is_parents() {
            core.process.set_in_use();
        }
        core.counters.running.set(core.counters.running_at(monotonic_nanos()));
        core.counters.started.set(0);
        core.timers.track_shared();
        core.end_turns();
    }
}

#[inline(always)]
fn turn(core: &Core) -> Result<(), Fatal> {
    add(&core.counters.turns, 1);
    let now = poll_or_skip(core)?;
    if core.io.has_events() {
        run_with_events(core, now)?;
    } else {
        make_due_timers_ready(core, now)?;
        run_ready(core, core.ready.len())?;
    }
    core.flush_all()
}

/// Step 1. Gives the time of the poll, or of the turn's begin.
#[inline(always)]
fn poll_or_skip(core: &Core) -> Result<u64, Fatal> {
    let now = monotonic_nanos();
    let reread = core.polls.take_reread();
    let skip = core.polls.may_skip(now, !core.ready.is_empty(), reread.is_some())
        && !core.state.stopping.get()
        && core.fds.callbacks() == 0
        && !core.custom_clock();
    let after = if skip {
        core.polls.note_skip();
        if let Some(token) = reread {
            core.io.push_event(Event { token, readiness: Readiness::READABLE });
        }
        now
    } else {
        let after = poll(core, now)?;
        core.polls.note_poll(after);
        after
    };
    // Sources that ask for another turn from here on get it in the next one.
    core.io.queue_requeued();
    deliver_messages(core)?;
    core.polls.note_events(core.io.has_events(), skip);
    Ok(after)
}

/// Delivers the messages of other threads.
#[inline(always)]
pub(super) fn deliver_messages(core: &Core) -> Result<(), Fatal> {
    match core.inbox.take() {
        Some(messages) => deliver(core, messages),
        None => Ok(()),
    }
}

#[inline(never)]
fn deliver(core: &Core, messages: Vec<Message>) -> Result<(), Fatal> {
    add(&core.counters.messages, messages.len() as u64);
    let event_loop = core.this();
    let mut outcome = Outcome::default();
    for message in messages {
        outcome.note(message(event_loop.py()));
    }
    outcome.finish()
}

/// Step 2. Moves timers that are due to the ready queue: never early, in order of their deadlines.
#[inline(always)]
pub(crate) fn make_due_timers_ready(core: &Core, now: u64) -> Result<(), Fatal> {
    let Some(next) = core.timers.next() else { return Ok(()) };
    let now = if core.custom_clock() {
        core.now().map_err(|Raised| Fatal)? + CUSTOM_RESOLUTION
    } else {
        now as f64 / 1e9
    };
    if next > now {
        return Ok(());
    }
    while let Some(handle) = core.timers.pop_due(now) {
        add(&core.counters.timers_fired, 1);
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
        run_ready(core, earlier)?;
        // A write may find out that a connection is lost: asyncio reports no event of it then.
        core.flush_all()?;
    }
    core.state.enter(Phase::Dispatching);
    let dispatched = dispatch_all(core);
    core.state.enter(Phase::Running);
    dispatched?;
    run_ready(core, due)?;
    if earlier == 0 && !core.ready.is_empty() && !core.state.stopping.get() && core.fds.callbacks() == 0 {
        // The next turn, with its timers, but without a poll: since the last one only the events have scheduled.
        if core.timers.next().is_some() {
            make_due_timers_ready(core, monotonic_nanos())?;
        }
        run_ready(core, core.ready.len())?;
    }
    Ok(())
}

/// Runs the first `count` entries of the ready queue.
#[inline(always)]
fn run_ready(core: &Core, count: usize) -> Result<(), Fatal> {
    add(&core.counters.callbacks, count as u64);
    for _ in 0..count {
        let Some(entry) = core.ready.pop() else { break };
        run(core, entry)?;
    }
    Ok(())
}
