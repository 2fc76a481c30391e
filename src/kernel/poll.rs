//! The poll: waits for events, for a wake-up by another thread, or for the timeout.
//!
//! The GIL is released only during a poll that may block, or that lets other threads run. Meanwhile the poller is
//! borrowed and `Core::is_polling` is true. Another thread that changes a registration then defers the change, and
//! wakes this thread.

use std::io;
use std::time::Duration;

use pyo3::ffi;

use super::core::Core;
use super::core::gil_fairness::{Away, GilDemand, YIELD};
use super::core::io::WAKER;
use super::core::plan::{Outlook, Plan, plan};
use super::core::poll_policy::{LONGEST_WAIT, seconds_until};
use super::observe::probe;
use super::support::call_support;
use super::watch;
use crate::capi::error::{Outcome, raise_os_error};
use crate::capi::raised::check_signals;
use crate::capi::threads::is_only_thread;
use crate::capi::{Fatal, Raised};
use crate::clock::{monotonic_nanos, other_threads_nanos};
use crate::reactor::{Poller, Wait};

/// A poll that took less than this, in nanoseconds, has not waited: its events were ready before it.
const AT_ONCE: u64 = 10_000;
/// After a turn of this length, in nanoseconds, the loop asks whether events are ready before it waits for events. The
/// duration of one poll does not always tell, because the system may run something else meanwhile.
const LONG_TURN: u64 = 1_000_000;
/// After a wait of this length, in nanoseconds, the loop looks for an exception that another thread has raised in this
/// one.
const LONG_WAIT: u64 = 1_000_000;

/// Polls, and returns the time after the poll. Queues the events in the core.
pub(super) fn poll(core: &Core, now: u64) -> Result<u64, Fatal> {
    if core.is_idle() {
        // Before the timeout is computed: a signal handler may stop the loop, queue a callback or set a timer.
        run_signal_handlers()?;
    }
    let ready = !core.is_idle();
    let wait = if ready { Wait::Not } else { wait_for_timer(core, now)? };
    if wait == Wait::Not && !ready {
        probe::nothing_waited(core);
    }
    let outlook = Outlook { now, ready, wait, had_events: core.polls.had_events() };
    let spin = || {
        let begin = || core.spins.begin(now, wait.nanos(), core.event_number());
        core.spins.is_likely().then(begin).flatten()
    };
    match plan(outlook, || gil_demand(core, now), spin) {
        Plan::Held(Wait::Not) => {
            poll_with_gil(core, Wait::Not)?;
            Ok(now)
        }
        Plan::Held(wait) => {
            poll_with_gil(core, wait)?;
            let end = monotonic_nanos();
            probe::waited_with_gil(core, end - now, end - now >= AT_ONCE);
            Ok(end)
        }
        Plan::Spin(until) => spin_until(core, now, until),
        Plan::Away { wait, yields } => poll_without_gil(core, now, wait, yields),
    }
}

/// Spins, and then waits if the spin has found nothing.
#[inline(never)]
fn spin_until(core: &Core, now: u64, until: u64) -> Result<u64, Fatal> {
    let mut found = false;
    let note = probe::spin_begins(core);
    let end = away_from_gil(core, now, true, false, |poller| {
        let polls = poller.spin(until, monotonic_nanos);
        let end = monotonic_nanos();
        found = poller.events().next().is_some();
        core.spins.note_spin(found, end - now);
        note(found, end - now);
        Polled { end, has_waited: matches!(polls, Ok(2..)), result: polls.map(drop) }
    })?;
    // Signal handlers have run meanwhile.
    if found || !core.is_idle() {
        return Ok(end);
    }
    match wait_for_timer(core, end)? {
        Wait::Not => Ok(end),
        wait => poll_without_gil(core, end, wait, false),
    }
}

/// The demand for the GIL now.
#[inline(always)]
pub(super) fn gil_demand(core: &Core, now: u64) -> GilDemand {
    core.gil.demand(now, core.inbox.awaits_jobs(), is_only_thread)
}

/// How many seconds are left until the next timer. `None` without a timer.
pub(super) fn seconds_until_timer(core: &Core, now: u64) -> Result<Option<f64>, Fatal> {
    let Some(deadline) = core.timers.next() else { return Ok(None) };
    // An error of a custom clock ends the run, as in asyncio.
    let now = if core.custom_clock() { core.now().map_err(|Raised| Fatal)? } else { now as f64 / 1e9 };
    Ok(Some(seconds_until(deadline, now)))
}

/// How long a poll may wait for the next timer.
fn wait_for_timer(core: &Core, now: u64) -> Result<Wait, Fatal> {
    let Some(seconds) = seconds_until_timer(core, now)? else { return Ok(Wait::Forever) };
    let left = Duration::from_secs_f64(seconds);
    Ok(match (Wait::within(now, left), core.timers.next()) {
        // Computed from the deadline alone, and rounded up, this is the same in each poll.
        (Wait::Until { .. }, Some(deadline)) if seconds < LONGEST_WAIT && !core.custom_clock() => {
            Wait::Until { at: (deadline * 1e9).ceil() as u64, left }
        }
        (wait, _) => wait,
    })
}

/// Polls with the GIL held. The wait is very short, if there is one.
#[inline(always)]
pub(super) fn poll_with_gil(core: &Core, wait: Wait) -> Result<(), Fatal> {
    let Some(mut poller) = core.io.poller_mut() else { return Ok(()) };
    let polled = poller.poll(wait);
    probe::polled_with_gil(core);
    queue_events(core, &poller, polled)?;
    drop(poller);
    run_signal_handlers()
}

/// Polls without the GIL, and returns the time after the poll. No Python code runs between the caller's computation of
/// the wait and the poll. With `yields` the GIL stays released for at least as long as other threads need to take
/// it.
pub(super) fn poll_without_gil(core: &Core, now: u64, wait: Wait, yields: bool) -> Result<u64, Fatal> {
    let waits = wait != Wait::Not;
    let asks = waits && core.turn_length(now) >= LONG_TURN;
    away_from_gil(core, now, waits, yields, |poller| {
        if asks {
            let result = poller.poll(Wait::Not);
            if result.is_err() || poller.events().next().is_some() {
                return Polled { end: monotonic_nanos(), has_waited: false, result };
            }
        }
        let result = poller.poll(wait);
        let end = monotonic_nanos();
        if waits {
            core.spins.note_sleep(end - now);
        }
        Polled { end, has_waited: waits && (asks || end - now >= AT_ONCE), result }
    })
}

/// How a poll went.
struct Polled {
    end: u64,
    /// Then nothing was ready before.
    has_waited: bool,
    result: io::Result<()>,
}

/// Releases the GIL, calls `poll`, and returns the time when the GIL is back. `poll` uses plain Rust only. With
/// `waits`, and a message to deliver, the loop polls without a wait instead.
#[inline(always)]
fn away_from_gil(
    core: &Core,
    now: u64,
    waits: bool,
    yields: bool,
    poll: impl FnOnce(&mut Poller) -> Polled,
) -> Result<u64, Fatal> {
    let Some(mut poller) = core.io.poller_mut() else { return Ok(now) };
    if !core.inbox.park() && waits {
        drop(poller);
        // The next turn may find another message here, and the one after that, but events and signals come to their
        // turn.
        poll_with_gil(core, Wait::Not)?;
        return Ok(now);
    }
    core.wakeup.polling.set(true);
    let has_polled = probe::leaves_gil(core, now);
    // SAFETY: this thread is attached. Between the two calls only the poller, which is borrowed, and what `poll` and
    // `has_polled` use are used. All of it is plain Rust.
    let (Polled { end, has_waited, result }, away) = unsafe {
        let state = ffi::PyEval_SaveThread();
        let polled = poll(&mut poller);
        let away = Away { start: now, end: polled.end, interrupted: false };
        has_polled(polled.end);
        let away = let_threads_run(&poller, polled.result.is_ok(), away, yields);
        ffi::PyEval_RestoreThread(state);
        (polled, away)
    };
    let back = monotonic_nanos();
    probe::has_gil_again(core, end, back, has_waited);
    core.gil.note_poll(away, back, || (!is_only_thread()).then(other_threads_nanos));
    let mut outcome = Outcome::default();
    outcome.note(queue_events(core, &poller, result));
    drop(poller);
    core.awake();
    outcome.note(watch::apply_deferred(core));
    outcome.finish()?;
    run_signal_handlers()?;
    if cfg!(not(Py_3_15)) && waits && end - now >= LONG_WAIT {
        raise_from_other_threads(core)?;
    }
    Ok(back)
}

/// Raises what another thread has raised in this one with `PyThreadState_SetAsyncExc`. Python does so only in Python
/// code, and the next such code may be a callback. Since 3.15 [`run_signal_handlers`] does it.
#[cold]
fn raise_from_other_threads(core: &Core) -> Result<(), Fatal> {
    call_support(core.borrow().py(), "run_nothing", &[]).map(drop).map_err(|Raised| Fatal)
}

/// Called after a poll, before the GIL is taken back: gives other threads time to take it.
fn let_threads_run(poller: &Poller, polled: bool, mut away: Away, yields: bool) -> Away {
    let woken_only = poller.events().all(|event| event.token == WAKER);
    let woken = woken_only && poller.events().next().is_some();
    // If there was only a wake-up, most likely a job has ended. Its thread does not need the GIL any more.
    while yields && !woken && away.end - away.start < YIELD {
        std::thread::yield_now();
        away.note_step(monotonic_nanos());
    }
    if polled && woken_only {
        // Another thread has woken us. If it runs Python, it still holds the GIL, and will soon wait for its next job.
        // To ask for the GIL a moment later saves the two threads a third of their futex calls.
        std::thread::yield_now();
    }
    away
}

fn queue_events(core: &Core, poller: &Poller, polled: io::Result<()>) -> Result<(), Fatal> {
    match polled {
        Ok(()) => {
            let count = core.io.extend(poller.events().filter(|event| event.token != WAKER));
            probe::found_events(core, count);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        // The poller no longer works, so the run ends, as asyncio's does when its selector fails.
        Err(error) => {
            let Raised = raise_os_error(&error);
            Err(Fatal)
        }
    }
}

/// Runs pending Python signal handlers. Their exceptions leave run_forever, as in asyncio, where `select` raises them.
pub(super) fn run_signal_handlers() -> Result<(), Fatal> {
    check_signals().map_err(|Raised| Fatal)
}
