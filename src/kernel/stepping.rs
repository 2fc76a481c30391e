//! Runs one loop iteration from Python, for tools that replace `_run_once` or the selector (nest_asyncio and the like).
//!
//! [`select`] polls once, and queues all callbacks that are due. The Python code then runs the queue.

use super::core::Core;
use super::core::gil_fairness::GilDemand;
use super::core::poll_policy::{last_part, shorter};
use super::core::run_state::Phase;
use super::dispatch::dispatch_all;
use super::observe::probe;
use super::poll::{gil_demand, poll_with_gil, poll_without_gil, run_signal_handlers, seconds_until_timer};
use super::turn::{deliver_messages, make_due_timers_ready};
use crate::capi::Fatal;
use crate::clock::monotonic_nanos;
use crate::reactor::Wait;
use crate::recorder::thread::thread_number;

/// How many seconds the Python code may sleep; `None` for no limit. Sends buffered writes first.
pub(crate) fn seconds_to_sleep(core: &Core) -> Result<Option<f64>, Fatal> {
    core.flush_all()?;
    if core.is_idle() { seconds_until_timer(core, monotonic_nanos()) } else { Ok(Some(0.0)) }
}

/// A turn, which ends also after an error.
struct Turn<'a>(&'a Core);

impl Turn<'_> {
    fn begin(core: &Core) -> Turn<'_> {
        core.begin_turns();
        // If a callback steps the loop that runs it, the turn of that run goes on.
        probe::is_busy(core);
        Turn(core)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.end_turns();
    }
}

/// Polls once. Returns the number of events and of callbacks that other threads have scheduled, as a count of a
/// selector's events.
pub(crate) fn select(core: &Core, timeout: Option<f64>) -> Result<usize, Fatal> {
    let _turn = Turn::begin(core);
    let happened = find_events(core, timeout)?;
    // Outside of the dispatch phase, the callbacks of the events are queued for the Python code.
    let outer = core.state.leave_dispatch();
    let dispatched = dispatch_all(core);
    core.state.enter(outer);
    dispatched?;
    make_due_timers_ready(core, monotonic_nanos())?;
    Ok(happened)
}

/// Polls once, and queues neither events nor timers. Returns the number of events, and of callbacks that other threads
/// have scheduled. [`dispatch`] handles the events.
pub(crate) fn poll_only(core: &Core, timeout: Option<f64>) -> Result<usize, Fatal> {
    let _turn = Turn::begin(core);
    find_events(core, timeout)
}

/// Handles the events that a poll has found: calls the protocols and the callbacks. They come after the callbacks that
/// were ready before the poll, and before the timers, as in a native turn.
pub(crate) fn dispatch(core: &Core) -> Result<(), Fatal> {
    let _turn = Turn::begin(core);
    // A write may find that a connection is lost. Then, as in asyncio, its event is not reported.
    core.flush_all()?;
    let outer = core.state.phase();
    core.state.enter(Phase::Dispatching);
    let dispatched = dispatch_all(core);
    core.state.enter(outer);
    dispatched
}

fn find_events(core: &Core, timeout: Option<f64>) -> Result<usize, Fatal> {
    core.flush_all()?;
    run_signal_handlers()?;
    let ready = core.ready.len();
    probe::turn_is_stepped(core, thread_number());
    poll(core, timeout)?;
    core.polls.note_outer_poll(monotonic_nanos());
    let events = core.io.events.len();
    core.io.queue_requeued();
    deliver_messages(core)?;
    Ok(events + core.ready.len().saturating_sub(ready))
}

fn poll(core: &Core, timeout: Option<f64>) -> Result<(), Fatal> {
    let now = monotonic_nanos();
    let busy = !core.ready.is_empty() || !core.io.requeued.is_empty();
    let requested = if busy { Some(0.0) } else { timeout };
    let timeout = shorter(requested, seconds_until_timer(core, now)?);
    let wait = timeout.map_or(Wait::Forever, |timeout| Wait::within(now, timeout));
    if wait == Wait::Not {
        return poll_with_gil(core, wait);
    }
    let yields = gil_demand(core, now) == GilDemand::YieldDue;
    let end = poll_without_gil(core, now, wait, yields)?;
    if let Some(left) = timeout.and_then(|timeout| last_part(timeout, end - now))
        && core.is_idle()
    {
        poll_without_gil(core, end, Wait::within(end, left), false)?;
    }
    Ok(())
}
