//! Dispatches events to the transport or listener that has the descriptor, or to those that wait for it.

use std::os::fd::RawFd;

use super::completion::complete;
use super::core::fd_table::Target;
use super::core::ready::NativeStep;
use super::core::run_state::Phase;
use super::core::watched_fd::{Direction, Registration, WatchedFd};
use super::core::{Core, Entry};
use super::handle::layout::{Handle, HandleRef};
use super::observe::probe::{self, Batch, Laps};
use super::run::run;
use super::{debug, watch};
use crate::capi::{Fatal, Ref};
use crate::reactor::{Event, Readiness};

/// Delivers all events that are queued.
#[inline(always)]
pub(super) fn dispatch_all(core: &Core) -> Result<(), Fatal> {
    let mut laps = probe::events_begin();
    while let Some(event) = core.io.events.pop() {
        dispatch(core, event, &mut laps)?;
    }
    probe::events_end(core, &laps);
    Ok(())
}

#[inline(always)]
fn dispatch(core: &Core, event: Event, laps: &mut Laps) -> Result<(), Fatal> {
    let Some(target) = core.fds.target(event.token) else { return Ok(()) };
    if core.instrumentation.sees_runs() {
        probe::event_comes(core, event);
    }
    match target {
        Target::Source(object, on_ready) => {
            let call = || on_ready(&object, core, event.readiness);
            if core.is_debug() { debug::native(core, &object, call) } else { call() }?;
            core.end_step()?;
            probe::event_ends(core, &object, laps)
        }
        Target::Watched(fd, watched) => {
            probe::waiters_of_event(laps, |batch| wake_waiters(core, fd, &watched, event.readiness, batch))
        }
    }
}

/// Handles an event of a watched descriptor. Handles are run or queued, futures are completed, other waiters are woken
/// in their own way. An error or a hang-up wakes both directions, as in the selectors module.
fn wake_waiters(
    core: &Core,
    fd: RawFd,
    watched: &WatchedFd<Core>,
    readiness: Readiness,
    batch: &mut Batch,
) -> Result<(), Fatal> {
    let trouble = Readiness::ERROR | Readiness::WRITE_CLOSED | Readiness::PRIORITY;
    let mut waiters = [None, None];
    if readiness.intersects(Readiness::READABLE | Readiness::READ_CLOSED | trouble) {
        waiters[0] = take_waiter(core, watched, Direction::Read);
    }
    if readiness.intersects(Readiness::WRITABLE | trouble) {
        waiters[1] = take_waiter(core, watched, Direction::Write);
    }
    let level = matches!(watched.registration.get(), Registration::Level(_));
    if level && waiters.iter().flatten().any(|(waiter, _)| !is_live(waiter)) {
        // A wait that is over must not cause more events. There is nothing to do if the update fails.
        let _ = watch::update(core, fd);
    }
    for (waiter, wake) in waiters.into_iter().flatten() {
        match HandleRef::new(waiter) {
            Ok(handle) if handle.is_cancelled() => {}
            Ok(handle) => {
                probe::callback_comes(core);
                run(core, Entry::Handle(handle), batch)?;
            }
            Err(waiter) => wake.map_or_else(|| complete(core, &waiter), |wake| wake(&waiter, core))?,
        }
    }
    Ok(())
}

/// The waiter of one direction, for the caller to wake, and how.
/// - A handle stays registered. If Python code steps the loop, it is queued here instead of returned.
/// - Another waiter, and a handle that was cancelled with `cancel()` are removed. Otherwise a level-triggered
///   registration would report them again and again.
fn take_waiter(
    core: &Core,
    watched: &WatchedFd<Core>,
    direction: Direction,
) -> Option<(Ref, Option<NativeStep<Core>>)> {
    let waiter = watched.side(direction).get()?;
    if !is_live(&waiter) {
        let wake = watched.wake(direction).get();
        return core.fds.set_waiter(watched, direction, None).map(|waiter| (waiter, wake));
    }
    if watched.set_after(direction).get() == core.poll_number() {
        // The next poll reports it again.
        return None;
    }
    if core.state.phase() == Phase::Dispatching {
        return Some((waiter, None));
    }
    if let Ok(handle) = HandleRef::new(waiter) {
        core.ready.push(Entry::Handle(handle));
    }
    None
}

/// Is it a handle that is not cancelled?
fn is_live(waiter: &Ref) -> bool {
    Handle::from_object(waiter).is_some_and(|handle| !handle.is_cancelled())
}
