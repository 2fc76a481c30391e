//! Where an event goes: to the transport or listener that has the descriptor, or to what waits for it.

use std::os::fd::RawFd;

use super::completion::complete;
use super::core::fd_table::Target;
use super::core::run_state::Phase;
use super::core::watched_fd::{Direction, Registration, WatchedFd};
use super::core::{Core, Entry, metrics};
use super::handle::layout::{Handle, HandleRef};
use super::run::run;
use super::sock::call::{SockCall, go_on};
use super::{debug, watch};
use crate::capi::{Fatal, Ref};
use crate::reactor::{Event, Readiness};

/// Delivers all events that are queued.
#[inline(always)]
pub(super) fn dispatch_all(core: &Core) -> Result<(), Fatal> {
    while let Some(event) = core.io.pop_event() {
        dispatch(core, event)?;
    }
    Ok(())
}

#[inline(always)]
fn dispatch(core: &Core, event: Event) -> Result<(), Fatal> {
    match core.fds.target(event.token) {
        Some(Target::Source(object, on_ready)) => {
            if core.is_debug() {
                return debug::native(core, &object, || on_ready(&object, core, event.readiness));
            }
            on_ready(&object, core, event.readiness)
        }
        Some(Target::Watched(fd, watched)) => wake_waiters(core, fd, &watched, event.readiness),
        None => Ok(()),
    }
}

/// A watched descriptor is ready: handles go to the ready queue or are run, futures are completed. An error or a hang-up
/// wakes both sides, as the selectors module does it.
fn wake_waiters(core: &Core, fd: RawFd, watched: &WatchedFd, readiness: Readiness) -> Result<(), Fatal> {
    let trouble = Readiness::ERROR | Readiness::WRITE_CLOSED | Readiness::PRIORITY;
    let mut waiters = [None, None];
    if readiness.intersects(Readiness::READABLE | Readiness::READ_CLOSED | trouble) {
        waiters[0] = take_waiter(core, watched, Direction::Read);
    }
    if readiness.intersects(Readiness::WRITABLE | trouble) {
        waiters[1] = take_waiter(core, watched, Direction::Write);
    }
    let level = matches!(watched.registration.get(), Registration::Level(_));
    if level && waiters.iter().flatten().any(|waiter| !is_live(waiter)) {
        // A wait that is over must not report again. Taking an interest back cannot fail in a way that anyone could act
        // on.
        let _ = watch::update(core, fd);
    }
    for waiter in waiters.into_iter().flatten() {
        if let Some(call) = SockCall::from_object(&waiter) {
            go_on(core, call)?;
            continue;
        }
        match HandleRef::new(waiter) {
            Ok(handle) if handle.is_cancelled() => {}
            Ok(handle) => {
                metrics::add(&core.counters.callbacks, 1);
                run(core, Entry::Handle(handle))?;
            }
            Err(future) => complete(core, &future)?,
        }
    }
    Ok(())
}

/// Gives the handle of one side to be run now, or queues it if Python code steps the loop and runs it. Or takes out a
/// future, a socket call or a handle that was cancelled directly: left in place, it would report its readiness for ever.
fn take_waiter(core: &Core, watched: &WatchedFd, direction: Direction) -> Option<Ref> {
    let waiter = watched.side(direction).get()?;
    if !is_live(&waiter) {
        return core.fds.set_waiter(watched, direction, None);
    }
    if watched.set_after(direction).get() == core.counters.polls.get() {
        // The next poll reports it again.
        return None;
    }
    if core.state.phase() == Phase::Dispatching {
        return Some(waiter);
    }
    if let Ok(handle) = HandleRef::new(waiter) {
        core.ready.push(Entry::Handle(handle));
    }
    None
}

/// A handle that is still to run?
fn is_live(waiter: &Ref) -> bool {
    Handle::from_object(waiter).is_some_and(|handle| !handle.is_cancelled())
}
