//! One turn of the loop.
//!
//! 1. Poll, unless the last poll is recent, and either callbacks are ready and no descriptor was used since, or a
//!    datagram socket had so much waiting that it is read again at once. With callbacks ready the poll does not
//!    block and keeps the GIL; otherwise it sleeps until the next deadline without the GIL.
//! 2. Move due timers to the ready queue: in asyncio they come before whatever this turn schedules.
//! 3. Run what was ready before the poll, if the poll brought anything: in asyncio that comes first. Then dispatch
//!    the events: straight to the transport, listener or watcher behind the token.
//! 4. Run the timers that were due, or whatever is ready if there was no event, in order. What all of these schedule
//!    runs next turn; without a poll in between if the events were all there was to do.
//! 5. Send what the turn has written, before the next poll can block. What callbacks wrote that were ready before the
//!    poll is sent before the events are dispatched: asyncio hears nothing more of a connection that is lost by then.
//!
//! A fatal error (`SystemExit`, `KeyboardInterrupt`) leaves in the middle; what was not dispatched or run
//! stays queued for the next run.

use std::io;
use std::time::Duration;

use pyo3::ffi;

use super::chances::CHANCE;
use super::clock::monotonic_nanos;
use super::core::{Core, Inherited, WAKER};
use super::debug;
use super::event_loop::entry_handle;
use super::handle::{Handle, is_handle, run_foreign, spent};
use super::metrics::add;
use super::ready::Entry;
use super::watch;
use crate::capi::call::{call0, call1, in_context};
use crate::capi::error::{Outcome, raise, raise_io, take_unless_fatal};
use crate::capi::threads::is_only_thread;
use crate::capi::{Fatal, Raised};
use crate::reactor::{Event, Poller, Readiness};

/// A busy loop polls at least every so many turns ...
///
/// That is as long as our own objects alone read and write: what they do asks for a poll. What a program does to a
/// descriptor that it watches with `add_reader` or `add_writer` is not seen, and it may count on the next turn to tell
/// of it, as asyncio's does: with such a callback every turn polls.
const TURNS_WITHOUT_POLL: u32 = 61;
/// ... and at least this often, in nanoseconds: what a ready socket behind a chain of callbacks waits.
const TIME_WITHOUT_POLL: u64 = 150_000;
/// The GIL is wanted by a thread that keeps it when it takes longer than this to come back after a poll, in
/// nanoseconds: more than threads need that only run for a moment, less than the interpreter's switch interval (5 ms).
const LONG_WAIT: u64 = 1_000_000;
/// For so many times as long as it took ...
const WARINESS: u64 = 8;
/// ... a turn that had events waits this long for the next ones before it gives up the GIL, which it would not get
/// back for a whole switch interval. Clients that answer at once are served many times in one interval then (a
/// thread that computes loses one such wait in each); and the interpreter still takes the GIL from callbacks.
const GRACE: Duration = Duration::from_micros(100);
/// A thread has had the GIL when it takes longer than this to come back.
const WAIT: u64 = 5_000;
/// The longest single sleep, in seconds. A day, as in asyncio; longer waits go round.
const LONGEST_SLEEP: f64 = 86_400.0;

/// What a clock that is not ours is forgiven, in seconds, as in asyncio: one that is moved on by exactly what is
/// left until a deadline may miss it by a rounding.
const CUSTOM_RESOLUTION: f64 = 1e-9;

/// Runs until `stop()` or a fatal error.
pub(crate) fn run(core: &Core) -> Result<(), Fatal> {
    /// Ends the run for whoever asks, by a panic too.
    struct Running<'a>(&'a Core);

    impl Drop for Running<'_> {
        fn drop(&mut self) {
            let core = self.0;
            core.running.set(false);
            if core.is_parents() {
                core.inherited.set(Inherited::InUse);
            }
            core.dispatching.set(false);
            core.counters.running.set(core.counters.running_at(monotonic_nanos()));
            core.counters.started.set(0);
            core.timers.track_shared();
            core.rest();
        }
    }

    core.counters.started.set(monotonic_nanos());
    core.running.set(true);
    core.begin_turns();
    let running = Running(core);
    let mut state = Turns { since_poll: TURNS_WITHOUT_POLL, last_poll: 0, had_events: false };
    let outcome = loop {
        if let Err(fatal) = state.turn(core) {
            break Err(fatal);
        }
        if core.stopping.get() {
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

struct Turns {
    since_poll: u32,
    last_poll: u64,
    /// The last turn had events.
    had_events: bool,
}

impl Turns {
    #[inline(always)]
    fn turn(&mut self, core: &Core) -> Result<(), Fatal> {
        add(&core.counters.turns, 1);
        let mut now = monotonic_nanos();
        let busy = core.busy.take();
        let recent = (busy.is_some() || (!core.ready.is_empty() && !core.touched.get()))
            && self.since_poll < TURNS_WITHOUT_POLL
            && now.wrapping_sub(self.last_poll) < TIME_WITHOUT_POLL
            && !core.stopping.get()
            && core.fds.callbacks() == 0
            && !core.custom_clock();
        if recent {
            self.since_poll += 1;
            if let Some(token) = busy {
                core.events().push_back(Event { token, readiness: Readiness::READABLE });
            }
        } else {
            now = poll(core, now, self.had_events)?;
            core.touched.set(false);
            self.since_poll = 0;
            self.last_poll = now;
        }
        // What the callbacks ask for anew is for the next turn.
        call_again(core);
        deliver(core)?;
        let news = !core.events().is_empty();
        self.had_events = news || (recent && self.had_events);
        let before = if news { core.ready.len() } else { 0 };
        due_timers(core, now)?;
        let due = core.ready.len() - before;
        if before > 0 {
            run_ready(core, before)?;
            // What they have written may tell that a connection is lost, of which no event is told then.
            core.flush_all()?;
        }
        core.dispatching.set(true);
        let dispatched = dispatch(core);
        core.dispatching.set(false);
        dispatched?;
        run_ready(core, due)?;
        if news && before == 0 && !core.ready.is_empty() && !core.stopping.get() && core.fds.callbacks() == 0
        {
            // The next turn, with its timers: nothing but what the events scheduled is left since the poll.
            if core.timers.next().is_some() {
                due_timers(core, monotonic_nanos())?;
            }
            run_ready(core, core.ready.len())?;
        }
        core.flush_all()
    }
}

/// Polls, and says what time it is then. Events end up in the core's queue.
fn poll(core: &Core, now: u64, had_events: bool) -> Result<u64, Fatal> {
    if idle(core) {
        // A signal handler may stop the loop, queue a callback or set a timer: before the timeout is worked out.
        signals()?;
    }
    if !idle(core) {
        if chance_is_due(core, now) {
            return sleep(core, now, Some(Duration::ZERO), true);
        }
        poll_briefly(core, Duration::ZERO)?;
        return Ok(now);
    }
    let timeout = sleep_for(core, now)?;
    if timeout == Some(Duration::ZERO) {
        poll_briefly(core, Duration::ZERO)?;
        return Ok(now);
    }
    if had_events && now < core.wary.get() {
        poll_briefly(core, timeout.map_or(GRACE, |timeout| timeout.min(GRACE)))?;
        return Ok(monotonic_nanos());
    }
    sleep(core, now, timeout, chance_is_due(core, now))
}

/// Nothing is left to do before something happens.
fn idle(core: &Core) -> bool {
    core.ready.is_empty()
        && !core.stopping.get()
        && !core.has_again()
        && !core.has_flush()
        && core.events().is_empty()
}

/// Is it time for other threads to have the GIL? Not while one of them keeps it: the interpreter gives that one its
/// share.
#[inline(always)]
fn chance_is_due(core: &Core, now: u64) -> bool {
    core.chances.is_due(now)
        && now >= core.wary.get()
        && core.chances.is_for_somebody(now, core.inbox.awaits_jobs())
}

/// Polls with the GIL.
fn poll_briefly(core: &Core, timeout: Duration) -> Result<(), Fatal> {
    add(&core.counters.polls, 1);
    let Some(poller) = core.poller_mut() else { return Ok(()) };
    let polled = poller.poll(Some(timeout));
    take_events(core, poller, polled)?;
    signals()
}

/// Sleeps in the poll without the GIL; the time after it. Between the caller's look at what is due and the poll no
/// Python code runs. With a `chance` it comes back no sooner than other threads had one to take the GIL.
fn sleep(core: &Core, now: u64, timeout: Option<Duration>, chance: bool) -> Result<u64, Fatal> {
    add(&core.counters.polls, 1);
    let Some(poller) = core.poller_mut() else { return Ok(now) };
    if !core.inbox.park() {
        // A message came in.
        return Ok(now);
    }
    add(&core.counters.blocking_polls, 1);
    core.set_polling(true);
    // SAFETY: the GIL is held; between the two calls nothing of Python is touched: the poller is plain
    // Rust, and `polling` keeps other threads from changing it meanwhile.
    let (polled, woken) = unsafe {
        let state = ffi::PyEval_SaveThread();
        let polled = poller.poll(timeout);
        let mut woken = monotonic_nanos();
        let nothing_else = poller.events().all(|event| event.token == WAKER);
        // Not where a job's end is all there is: the loop has slept for it, and its thread is done.
        let chance = chance && !(nothing_else && poller.events().next().is_some());
        while chance && woken - now < CHANCE {
            std::thread::yield_now();
            woken = monotonic_nanos();
        }
        if polled.is_ok() && nothing_else {
            // Another thread woke us. If it was Python, it holds the GIL and is about to wait for its next
            // piece of work: to ask for the GIL a moment later saves the two threads a third of their futexes.
            std::thread::yield_now();
        }
        ffi::PyEval_RestoreThread(state);
        (polled, woken)
    };
    let after = monotonic_nanos();
    add(&core.counters.idle, after - now);
    if woken - now >= CHANCE {
        core.chances.given(woken);
    }
    let waited = after - woken;
    // The only thread of the interpreter can wait for nobody: it was the system that let it wait.
    if waited > WAIT && !is_only_thread() {
        core.chances.note_thread();
        if waited > LONG_WAIT {
            core.wary.set(after + WARINESS * waited);
        }
    }
    let mut outcome = Outcome::default();
    outcome.note(take_events(core, poller, polled));
    core.awake();
    outcome.note(watch::apply_deferred(core));
    outcome.finish()?;
    signals()?;
    Ok(after)
}

fn take_events(core: &Core, poller: &Poller, polled: io::Result<()>) -> Result<(), Fatal> {
    match polled {
        Ok(()) => {
            let before = core.events().len();
            core.events().extend(poller.events().filter(|event| event.token != WAKER));
            add(&core.counters.events, (core.events().len() - before) as u64);
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        // Nothing is heard from such a poller: the run ends, as asyncio's does when its selector fails.
        Err(error) => {
            let Raised = raise_io(&error);
            return Err(Fatal);
        }
    }
    Ok(())
}

/// Runs the Python signal handlers that are due. Their exceptions leave run_forever, as asyncio's do:
/// there they come out of `select`.
fn signals() -> Result<(), Fatal> {
    // SAFETY: GIL held. Outside the main thread this is a test of one flag.
    if unsafe { ffi::PyErr_CheckSignals() } == 0 { Ok(()) } else { Err(Fatal) }
}

/// How long the poll may sleep: `None` for ever.
fn sleep_for(core: &Core, now: u64) -> Result<Option<Duration>, Fatal> {
    Ok(seconds_left(core, now)?.map(Duration::from_secs_f64))
}

/// The same in seconds, between nothing and [`LONGEST_SLEEP`].
fn seconds_left(core: &Core, now: u64) -> Result<Option<f64>, Fatal> {
    let Some(when) = core.timers.next() else { return Ok(None) };
    let now = if core.custom_clock() {
        match core.now() {
            Ok(now) => now,
            // A broken clock ends the run, as in asyncio.
            Err(Raised) => return Err(Fatal),
        }
    } else {
        now as f64 / 1e9
    };
    let left = when - now;
    // What a clock says that is "not a number" must not reach Duration, which would panic: it is no wait.
    Ok(Some(if left > 0.0 { left.min(LONGEST_SLEEP) } else { 0.0 }))
}

/// The sources that want to be called again have an event each.
#[inline(always)]
fn call_again(core: &Core) {
    if let Some(again) = core.take_again() {
        core.events().extend(again.into_iter().map(|(token, readiness)| Event { token, readiness }));
    }
}

/// Delivers the messages of other threads.
#[inline(always)]
fn deliver(core: &Core) -> Result<(), Fatal> {
    let Some(messages) = core.inbox.take() else { return Ok(()) };
    add(&core.counters.messages, messages.len() as u64);
    let mut outcome = Outcome::default();
    for message in messages {
        outcome.note(message());
    }
    outcome.finish()
}

/// Delivers the events.
#[inline(always)]
fn dispatch(core: &Core) -> Result<(), Fatal> {
    while let Some(event) = core.events().pop_front() {
        core.fds.dispatch(core, event.token, event.readiness)?;
    }
    Ok(())
}

/// Moves timers that are due to the ready queue: never early, in order of their deadlines.
#[inline(always)]
pub(crate) fn due_timers(core: &Core, now: u64) -> Result<(), Fatal> {
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

/// Runs the first `count` entries of the ready queue.
#[inline(always)]
fn run_ready(core: &Core, count: usize) -> Result<(), Fatal> {
    add(&core.counters.callbacks, count as u64);
    for _ in 0..count {
        let Some(entry) = core.ready.pop() else { break };
        run_one(core, entry)?;
    }
    Ok(())
}

#[inline(always)]
pub(super) fn run_one(core: &Core, entry: Entry) -> Result<(), Fatal> {
    if core.plain.get() { run_entry(core, entry) } else { run_watched(core, entry) }
}

/// As [`run_entry`], in debug mode or with a tool in the place of `asyncio.Handle._run`, which sees every callback.
#[cold]
fn run_watched(core: &Core, entry: Entry) -> Result<(), Fatal> {
    let entry = if core.replaced.get().handle_run {
        Entry::Handle(entry_handle(core, entry).map_err(|Raised| Fatal)?)
    } else {
        entry
    };
    if core.debug.get() { debug::run(core, entry) } else { run_shown(core, entry) }
}

/// Runs an entry by way of that tool, if there is one.
fn run_shown(core: &Core, entry: Entry) -> Result<(), Fatal> {
    let handle = match entry {
        // SAFETY: entries of this kind hold handles; just tested whether it is ours.
        Entry::Handle(handle) if is_handle(handle.as_ptr()) => handle,
        Entry::Handle(handle) => return run_entry(core, Entry::Foreign(handle)),
        other => return run_entry(core, other),
    };
    // SAFETY: just tested; the handle is held.
    let inside = unsafe { Handle::of(handle.as_ptr()) };
    if inside.is_cancelled() {
        return Ok(());
    }
    match inside.run_by_tool() {
        Ok(true) => {
            spent(&handle);
            Ok(())
        }
        Ok(false) => run_entry(core, Entry::Handle(handle)),
        // What flies out of a tool ends the run, as in asyncio.
        Err(Raised) => Err(Fatal),
    }
}

#[inline(always)]
pub(super) fn run_entry(core: &Core, entry: Entry) -> Result<(), Fatal> {
    match entry {
        Entry::Call { callback, argument, context } => {
            let result = in_context(&context, || match &argument {
                Some(argument) => call1(&callback, argument.as_ptr()),
                None => call0(&callback),
            });
            match result {
                Ok(_) => Ok(()),
                Err(raised) => core.report_call(&callback, argument.as_ref(), &context, raised),
            }
        }
        Entry::Handle(handle) => {
            // SAFETY: entries of this kind hold our own handles.
            match unsafe { Handle::of(handle.as_ptr()) }.run() {
                Ok(()) => Ok(()),
                Err(raised) => core.report_handle(&handle, raised),
            }
        }
        Entry::Native { object, run } => run(&object, core),
        Entry::Foreign(handle) => run_foreign(&handle).or_else(|raised| match take_unless_fatal() {
            // `_run` reports its own errors; what comes out of it is worth no less than a print.
            Ok(exception) => {
                raise(exception);
                core.unraisable(raised)
            }
            Err(fatal) => Err(fatal),
        }),
    }
}

/// How long a `_run_once` written in Python may sleep: seconds, `None` for ever. What was written is sent first.
pub(crate) fn wait(core: &Core) -> Result<Option<f64>, Fatal> {
    core.nested();
    core.flush_all()?;
    if idle(core) { seconds_left(core, monotonic_nanos()) } else { Ok(Some(0.0)) }
}

/// For a `_run_once` written in Python (nest_asyncio and the like): one poll, and everything that is due becomes
/// ready. The caller runs it. How much has happened is what a selector would have told, in events.
pub(crate) fn select(core: &Core, timeout: Option<f64>) -> Result<usize, Fatal> {
    /// Ends the turn, whatever comes of it.
    struct Turn<'a>(&'a Core);

    impl Drop for Turn<'_> {
        fn drop(&mut self) {
            self.0.rest();
        }
    }

    core.nested();
    core.begin_turns();
    let _turn = Turn(core);
    add(&core.counters.turns, 1);
    core.flush_all()?;
    signals()?;
    let now = monotonic_nanos();
    let wanted = match timeout {
        _ if !core.ready.is_empty() || core.has_again() => Some(Duration::ZERO),
        Some(seconds) if seconds <= 0.0 => Some(Duration::ZERO),
        Some(seconds) => Some(Duration::from_secs_f64(seconds.min(LONGEST_SLEEP))),
        None => None,
    };
    let timeout = match (wanted, sleep_for(core, now)?) {
        (Some(wanted), Some(timer)) => Some(wanted.min(timer)),
        (wanted, timer) => wanted.or(timer),
    };
    let before = core.ready.len();
    if timeout == Some(Duration::ZERO) {
        poll_briefly(core, Duration::ZERO)?;
    } else {
        let woken = sleep(core, now, timeout, chance_is_due(core, now))?;
        if let Some(left) = timeout.and_then(|timeout| last_part(timeout, woken - now))
            && idle(core)
        {
            sleep(core, woken, Some(left), false)?;
        }
    }
    let happened = core.events().len();
    call_again(core);
    deliver(core)?;
    let happened = happened + core.ready.len().saturating_sub(before);
    // Their callbacks become ready, which the caller runs.
    let outer = core.dispatching.replace(false);
    let dispatched = dispatch(core);
    core.dispatching.set(outer);
    dispatched?;
    due_timers(core, monotonic_nanos())?;
    Ok(happened)
}

/// What the poller has left of a long wait for another call. Clocks that count the timeouts of `select` need all of it.
fn last_part(timeout: Duration, slept: u64) -> Option<Duration> {
    let left = timeout.checked_sub(Duration::from_nanos(slept))?;
    (left <= Duration::from_millis(2) + timeout / 50).then_some(left)
}
