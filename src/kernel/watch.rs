//! Watches descriptors: `add_reader`, `add_writer`, and the waits of the awaitable socket calls.
//!
//! The poller can register a descriptor only once, so both kinds of waiters share a record ([`WatchedFd`]).
//! - While there is a callback, the registration is level-triggered, as asyncio promises.
//! - A descriptor for which only `sock_*` calls wait is registered once, edge-triggered in both directions, and stays
//!   registered. So a wait needs no `epoll_ctl`. The calls make their system call before they wait, so nothing is lost
//!   if an edge arrives while there is no waiter.
//! - Closing a descriptor removes it from the poller, and its number may be used by another socket. So an
//!   edge-triggered record has a weak reference to its socket object.

use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::ffi;

use super::core::Core;
use super::core::fd_table::Kind;
use super::core::ready::NativeStep;
use super::core::watched_fd::{Direction, Registration, WatchedFd};
use super::handle::layout::HandleRef;
use crate::capi::error::raise_os_error;
use crate::capi::imports::imports;
use crate::capi::{Exception, Fatal, Raised, Ref};
use crate::reactor::{Interest, Poller};

/// Updates the registration of `fd` to its waiters. If another thread waits in the poller, defers this, and wakes that
/// thread to do it.
pub(super) fn update(core: &Core, fd: RawFd) -> io::Result<()> {
    if core.is_polling() {
        core.io.defer(fd);
        core.inbox.wake();
        return Ok(());
    }
    apply(core, fd)
}

fn apply(core: &Core, fd: RawFd) -> io::Result<()> {
    let Some(poller) = core.poller_to_change() else { return Ok(()) };
    let Some(watched) = core.fds.watched(fd) else {
        if core.fds.source(fd).is_none() {
            // The entry was removed while a thread waited in the poller. This fails if the descriptor was closed.
            let _ = poller.deregister(fd);
        }
        return Ok(());
    };
    if core.is_parents() {
        // A forked child shares the poller with its parent, and must not change the parent's registration.
        if !watched.is_used() {
            forget(core, fd, watched, poller);
        }
        return Ok(());
    }
    let token = core.fds.token(fd);
    let old = watched.registration.get();
    if old == Registration::Edge && !watched.has_handle() {
        return Ok(());
    }
    let Some(interest) = watched.interest() else {
        if old != Registration::None {
            // This fails if the descriptor was closed, because closing has removed it from the poller.
            let _ = poller.deregister(fd);
        }
        forget(core, fd, watched, poller);
        return Ok(());
    };
    match old {
        Registration::Level(now) if now == interest => return Ok(()),
        Registration::None => poller.ensure_level(fd, token, interest),
        // The poller does not find it if the program has closed the descriptor and its number is in use again.
        _ => poller.update_level(fd, token, interest),
    }?;
    watched.registration.set(Registration::Level(interest));
    Ok(())
}

/// Removes a record from the table. The record may have the last reference to a file object, whose destructor may call
/// this module again. So the borrow of the poller ends first.
fn forget(core: &Core, fd: RawFd, watched: Rc<WatchedFd<Core>>, poller: std::cell::Ref<'_, Poller>) {
    drop(poller);
    drop((core.fds.remove(fd), watched));
}

/// Applies the changes that other threads have requested while this thread waited in the poller. Their calls have
/// returned, so an error can only be printed.
pub(crate) fn apply_deferred(core: &Core) -> Result<(), Fatal> {
    for fd in core.io.take_deferred() {
        apply(core, fd).or_else(|error| core.unraisable(raise_os_error(&error)))?;
    }
    Ok(())
}

/// The record of `fd`. Makes one if there is none.
fn record(core: &Core, fd: RawFd) -> Result<Rc<WatchedFd<Core>>, Raised> {
    if let Some(watched) = core.fds.watched(fd) {
        return Ok(watched);
    }
    let watched = Rc::new(WatchedFd::new());
    core.fds.insert(fd, Kind::Watched(Rc::clone(&watched))).map_err(|error| raise_os_error(&error))?;
    Ok(watched)
}

/// Sets the callback of one direction. The handle that it replaces is cancelled. `file` is the object that was passed
/// instead of a number.
pub(crate) fn add(
    core: &Core,
    fd: RawFd,
    direction: Direction,
    handle: &HandleRef,
    file: Option<Ref>,
) -> Result<(), Raised> {
    core.check_process()?;
    if core.fds.source(fd).is_some() {
        let text = format!("File descriptor {fd} is used by a transport");
        return Err(Exception::RuntimeError.raise(&text));
    }
    let watched = record(core, fd)?;
    let old = core.fds.set_waiter(&watched, direction, Some(handle.object().clone_ref()));
    let same = file.as_ref().is_some_and(|file| watched.is_of(file.as_ptr()));
    if old.is_some() && !same && watched.registration.get() != Registration::None {
        watched.registration.set(Registration::Doubtful);
    }
    watched.set_after(direction).set(core.poll_number());
    if let Err(error) = update(core, fd) {
        let failed = core.fds.set_waiter(&watched, direction, old);
        if !watched.is_used() {
            drop(core.fds.remove(fd));
        }
        drop(failed);
        return Err(raise_os_error(&error));
    }
    let former = file.and_then(|file| {
        let former = watched.file.take();
        watched.file.set(Some(file));
        former
    });
    cancel(old);
    drop(former);
    Ok(())
}

/// Removes the callback of one direction, or the wait of an awaitable call, which asyncio implements as a callback.
/// That call then waits until it is cancelled. True if there was one.
pub(crate) fn remove(core: &Core, fd: RawFd, direction: Direction) -> bool {
    let Some(watched) = core.fds.watched(fd).filter(|watched| !watched.side(direction).is_empty()) else {
        return false;
    };
    let old = core.fds.set_waiter(&watched, direction, None);
    // There is nothing that the caller could do if this fails.
    let _ = update(core, fd);
    cancel(old);
    true
}

/// Cancels a handle that was replaced or removed, as asyncio does.
fn cancel(waiter: Option<Ref>) {
    if let Some(Ok(handle)) = waiter.map(HandleRef::new) {
        handle.cancel_watcher();
    }
}

/// Registers `waiter` until `fd` is ready. Then `wake` is called with it; without that, it is a future, and is completed.
/// `socket` is the object that has the descriptor.
pub(crate) fn wait(
    core: &Core,
    fd: RawFd,
    direction: Direction,
    socket: &Ref,
    waiter: Ref,
    wake: Option<NativeStep<Core>>,
) -> Result<(), Raised> {
    core.check_process()?;
    core.check_usable()?;
    if core.fds.source(fd).is_some() {
        return Err(used_by_transport(core, socket));
    }
    let known = core.fds.watched(fd).is_some_and(|watched| watched.has_edge_of(socket));
    // Made first, because on 3.11 creating an object can run the garbage collector, which can change the record.
    let owner = if known { None } else { weak_reference(socket)? };
    let watched = record(core, fd)?;
    let old = core.fds.set_waiter(&watched, direction, Some(waiter));
    watched.wake(direction).set(wake);
    let level = matches!(watched.registration.get(), Registration::Level(_));
    // An edge counts for the socket that it was registered for, to which the record refers weakly.
    let keeps_edge = known || owner.is_some();
    let outcome = if watched.has_handle() || core.is_polling() || level || !keeps_edge {
        update(core, fd).map_err(|error| raise_os_error(&error))
    } else {
        keep_edge(core, fd, &watched, owner)
    };
    if outcome.is_err() {
        drop(core.fds.set_waiter(&watched, direction, None));
    }
    cancel(old);
    outcome
}

/// Raises asyncio's `RuntimeError` for a descriptor that a transport uses.
#[cold]
fn used_by_transport(core: &Core, socket: &Ref) -> Raised {
    let refused = core.this().call_method(&imports()._ensure_fd_no_transport, &[socket.borrow()]);
    if refused.is_ok() {
        // A transport that is closing still has its descriptor, but asyncio's method does not raise for it.
        return Exception::RuntimeError.raise("File descriptor is used by a transport");
    }
    Raised
}

/// A weak reference, or `None` for an object of a program's own class that has none.
fn weak_reference(object: &Ref) -> Result<Option<Ref>, Raised> {
    // SAFETY: a live object, whose class supports weak references if it has a place for them.
    unsafe {
        if (*object.kind()).tp_weaklistoffset == 0 {
            return Ok(None);
        }
        Ref::from_owned(ffi::PyWeakref_NewRef(object.as_ptr(), std::ptr::null_mut())).map(Some).ok_or(Raised)
    }
}

/// Registers `fd` edge-triggered for the socket to which `owner` refers. `None` means that this was done before.
fn keep_edge(core: &Core, fd: RawFd, watched: &WatchedFd<Core>, owner: Option<Ref>) -> Result<(), Raised> {
    let (Some(poller), Some(owner)) = (core.poller_to_change(), owner) else { return Ok(()) };
    let token = core.fds.token(fd);
    poller.ensure_edge(fd, token, Interest::BOTH).map_err(|error| raise_os_error(&error))?;
    watched.registration.set(Registration::Edge);
    watched.owner.set(Some(owner));
    Ok(())
}

/// Removes `waiter`, if it is still registered.
pub(crate) fn cancel_wait(core: &Core, fd: RawFd, direction: Direction, waiter: *mut ffi::PyObject) {
    let Some(watched) = core.fds.watched(fd) else { return };
    let side = watched.side(direction);
    if side.as_ptr() == waiter {
        let own = side.take();
        if matches!(watched.registration.get(), Registration::Level(_)) {
            // There is nothing to do if this fails.
            let _ = update(core, fd);
        }
        drop(own);
    }
}

/// The interest as in the selectors module (bit 0 for reading, bit 1 for writing), for the selector facade.
pub(crate) fn selector_events(core: &Core, fd: RawFd) -> u32 {
    let Some(watched) = core.fds.watched(fd) else { return 0 };
    let bit = |direction| u32::from(!watched.side(direction).is_empty());
    bit(Direction::Read) | bit(Direction::Write) << 1
}

/// The handle of one direction, for the selector facade.
pub(crate) fn selector_handle(core: &Core, fd: RawFd, direction: Direction) -> Option<Ref> {
    let waiter = core.fds.watched(fd)?.side(direction).get()?;
    HandleRef::new(waiter).ok().map(HandleRef::into_object)
}
