//! Watched descriptors: `add_reader`, `add_writer`, and the waits of the awaitable socket calls.
//!
//! One descriptor can be in the poller once, so both kinds share an entry. While anyone asked for a
//! callback the registration is level-triggered, as asyncio promises. A descriptor that only `sock_*`
//! calls wait on is registered once, edge-triggered in both directions, and stays: the calls try first,
//! so an edge that nobody waited for loses nothing, and no `epoll_ctl` is needed per wait. Because a
//! closed descriptor leaves the poller by itself and its number comes back with another socket, such an
//! entry remembers its socket object by a weak reference.

use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;

use pyo3::ffi;

use super::core::Core;
use super::futures::keep_spent;
use super::handle::{Handle, is_handle};
use super::metrics;
use super::ready::Entry;
use super::sock::{self, is_sock_call};
use super::source::{FdTable, Kind};
use super::turn::run_one;
use crate::capi::call::method;
use crate::capi::error::{raise_io, raise_message};
use crate::capi::future;
use crate::capi::imports::imports;
use crate::capi::{Fatal, Raised, Ref, Slot};
use crate::reactor::{Interest, Readiness};

/// Which way a watcher looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// How the descriptor stands in the poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Unregistered,
    Level(Interest),
    Edge,
    /// It was, and the number has been given again since: it may be another file's by now, which the poller does not know.
    Doubtful,
}

/// Who waits on one descriptor: per direction a Handle, the future of a socket call, or a call that goes on by itself.
#[derive(Debug)]
pub(crate) struct Watch {
    reader: Slot,
    writer: Slot,
    /// After which poll the callback of each side was set. What that poll told is not for it: in asyncio a callback
    /// that is replaced, or taken away and set again, takes its place in the turn along.
    set_after: [Cell<u64>; 2],
    mode: Cell<Mode>,
    /// Somebody else's work makes the descriptor ready, a signal's or a child's: no callback of the program does.
    own: Cell<bool>,
    /// A weak reference to the socket that edge mode was set up for.
    owner: Slot,
    /// The object that `add_reader` or `add_writer` was given, unless it was a number. Kept alive, as a selector
    /// keeps it, and found by identity once it is closed and cannot say its number any more.
    file: Slot,
}

impl Watch {
    fn new() -> Watch {
        Watch {
            reader: Slot::empty(),
            writer: Slot::empty(),
            set_after: [const { Cell::new(0) }; 2],
            mode: Cell::new(Mode::Unregistered),
            own: Cell::new(false),
            owner: Slot::empty(),
            file: Slot::empty(),
        }
    }

    fn side(&self, direction: Direction) -> &Slot {
        match direction {
            Direction::Read => &self.reader,
            Direction::Write => &self.writer,
        }
    }

    /// Puts a waiter in the place of another.
    fn put(&self, table: &FdTable, direction: Direction, waiter: Option<Ref>) -> Option<Ref> {
        let (before, side) = (self.callbacks(), self.side(direction));
        let old = side.take();
        side.set(waiter);
        table.count_callbacks(before, self.callbacks());
        old
    }

    /// How many callbacks of the program's wait here.
    pub(super) fn callbacks(&self) -> usize {
        if self.own.get() {
            return 0;
        }
        [&self.reader, &self.writer]
            .iter()
            .filter(|slot| !slot.is_empty() && is_handle(slot.as_ptr()))
            .count()
    }

    fn set_after(&self, direction: Direction) -> &Cell<u64> {
        &self.set_after[direction as usize]
    }

    /// Was `file` what this descriptor was given as?
    pub(crate) fn is_of(&self, file: *mut ffi::PyObject) -> bool {
        self.file.as_ptr() == file
    }

    /// Does anybody wait?
    pub(crate) fn is_used(&self) -> bool {
        self.interest().is_some()
    }

    /// Is it registered for edges, for this very socket?
    fn has_edge_of(&self, socket: &Ref) -> bool {
        self.mode.get() == Mode::Edge && refers_to(&self.owner, socket)
    }

    fn has_handle(&self) -> bool {
        [&self.reader, &self.writer].iter().any(|slot| !slot.is_empty() && is_handle(slot.as_ptr()))
    }

    /// What a level-triggered registration has to ask for.
    fn interest(&self) -> Option<Interest> {
        match (self.reader.is_empty(), self.writer.is_empty()) {
            (false, false) => Some(Interest::BOTH),
            (false, true) => Some(Interest::READ),
            (true, false) => Some(Interest::WRITE),
            (true, true) => None,
        }
    }

    /// The descriptor is ready: handles go to the ready queue or are run, futures are completed. An error or a
    /// hang-up wakes both sides, as the selectors module does it.
    pub(crate) fn on_ready(&self, core: &Core, fd: RawFd, readiness: Readiness) -> Result<(), Fatal> {
        let trouble = Readiness::ERROR | Readiness::WRITE_CLOSED | Readiness::PRIORITY;
        let mut waiters = [None, None];
        if readiness.intersects(Readiness::READABLE | Readiness::READ_CLOSED | trouble) {
            waiters[0] = self.wake(core, Direction::Read);
        }
        if readiness.intersects(Readiness::WRITABLE | trouble) {
            waiters[1] = self.wake(core, Direction::Write);
        }
        let over = |waiter: &Option<Ref>| waiter.as_ref().is_some_and(|waiter| !is_live(waiter));
        if waiters.iter().any(over) && matches!(self.mode.get(), Mode::Level(_)) {
            // A wait that is over must not report again. Taking an interest back cannot fail in a way that
            // anyone could act on.
            let _ = update(core, fd);
        }
        // From here on Python may run, and `self` may be gone.
        for waiter in waiters.into_iter().flatten() {
            if is_sock_call(waiter.as_ptr()) {
                sock::go_on(core, &waiter)?;
            } else if !is_handle(waiter.as_ptr()) {
                complete(core, &waiter)?;
            } else if is_live(&waiter) {
                metrics::add(&core.counters.callbacks, 1);
                run_one(core, Entry::Handle(waiter))?;
            }
        }
        Ok(())
    }

    /// Gives a side's handle to be run now, or queues it if a turn written in Python runs it; or takes out its future. A
    /// handle that was cancelled directly is taken out too, as asyncio does it: left in place, it would report its
    /// readiness for ever.
    fn wake(&self, core: &Core, direction: Direction) -> Option<Ref> {
        let waiter = self.side(direction).get()?;
        if is_live(&waiter) {
            if self.set_after(direction).get() == core.counters.polls.get() {
                // The poller tells it again.
                return None;
            }
            if core.dispatching.get() {
                return Some(waiter);
            }
            core.ready.push(Entry::Handle(waiter));
            return None;
        }
        self.put(&core.fds, direction, None)
    }

    /// The loop is closed: nothing here will run.
    pub(crate) fn empty(&self) {
        for side in [&self.reader, &self.writer] {
            if let Some(waiter) = side.take()
                && is_handle(waiter.as_ptr())
            {
                super::handle::empty(&waiter);
            }
        }
    }

    /// # Safety
    /// Called by the collector; `visit` runs no Python code.
    pub(crate) unsafe fn traverse(&self, visit: &mut dyn FnMut(*mut ffi::PyObject) -> i32) -> i32 {
        for slot in [&self.reader, &self.writer, &self.owner, &self.file] {
            if !slot.is_empty() {
                let result = visit(slot.as_ptr());
                if result != 0 {
                    return result;
                }
            }
        }
        0
    }
}

/// A handle that is still to run?
fn is_live(waiter: &Ref) -> bool {
    // SAFETY: just tested.
    is_handle(waiter.as_ptr()) && !unsafe { Handle::of(waiter.as_ptr()) }.is_cancelled()
}

/// `future.set_result(None)` unless it is done, which a cancelled one is.
pub(crate) fn complete(core: &Core, future: &Ref) -> Result<(), Fatal> {
    complete_with(core, future, &Ref::none())
}

/// The same with another result.
pub(crate) fn complete_with(core: &Core, future: &Ref, result: &Ref) -> Result<(), Fatal> {
    match future::complete(future, result) {
        Ok(completed) => {
            // SAFETY: comparing with the address of `None`.
            if completed && result.as_ptr() == unsafe { ffi::Py_None() } {
                keep_spent(core, future);
            }
            Ok(())
        }
        Err(raised) => core.unraisable(raised),
    }
}

/// Does nobody wait for this future any more?
pub(crate) fn is_done(core: &Core, future: &Ref) -> Result<bool, Fatal> {
    future::is_done(future).or_else(|raised| core.unraisable(raised).map(|()| true))
}

/// Brings the poller in line with what is waited for on `fd`. While another thread is parked in the
/// poll, only notes it down and wakes that thread, which does it then.
fn update(core: &Core, fd: RawFd) -> io::Result<()> {
    if core.polling.get() {
        // SAFETY: GIL held, nothing runs inside.
        unsafe { (*core.deferred.get()).push(fd) };
        core.inbox.wake();
        return Ok(());
    }
    apply(core, fd)
}

fn apply(core: &Core, fd: RawFd) -> io::Result<()> {
    let Some(poller) = core.poller() else { return Ok(()) };
    let Some(watch) = core.fds.watch(fd) else {
        if core.fds.source(fd).is_none() {
            // What was there was taken away while the loop was parked. If it was closed since, this fails.
            let _ = poller.deregister(fd);
        }
        return Ok(());
    };
    if core.is_parents() {
        // A forked child shares the poller with its parent, whose registration this is.
        if watch.interest().is_none() {
            drop(core.fds.remove(fd));
        }
        return Ok(());
    }
    let token = core.fds.token(fd);
    let old = watch.mode.get();
    if old == Mode::Edge && !watch.has_handle() {
        return Ok(());
    }
    let Some(interest) = watch.interest() else {
        if old != Mode::Unregistered {
            // A descriptor that was closed before it was removed has left the poller by itself.
            let _ = poller.deregister(fd);
        }
        drop(core.fds.remove(fd));
        return Ok(());
    };
    let registered = match old {
        Mode::Level(now) if now == interest => return Ok(()),
        Mode::Unregistered => match poller.register_level(fd, token, interest) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                poller.reregister_level(fd, token, interest)
            }
            other => other,
        },
        _ => match poller.reregister_level(fd, token, interest) {
            // Closed and opened again behind our back.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                poller.register_level(fd, token, interest)
            }
            other => other,
        },
    };
    if registered.is_ok() {
        watch.mode.set(Mode::Level(interest));
    }
    registered
}

/// Applies what other threads asked for while the loop was parked. Their call has returned already, so
/// an error goes to the exception handler.
pub(crate) fn apply_deferred(core: &Core) -> Result<(), Fatal> {
    // SAFETY: GIL held; the list is moved out first.
    let list = unsafe { std::mem::take(&mut *core.deferred.get()) };
    for fd in list {
        if let Err(error) = apply(core, fd) {
            let raised = raise_io(&error);
            core.unraisable(raised)?;
        }
    }
    Ok(())
}

/// Makes sure that a watch stands behind `fd`.
fn ensure(core: &Core, fd: RawFd) -> Result<(), Raised> {
    if core.fds.watch(fd).is_none() {
        let watch = Kind::Watch(Box::new(Watch::new()));
        core.fds.insert(fd, watch).map_err(|error| raise_io(&error))?;
    }
    Ok(())
}

/// Sets the callback of one side; the handle it replaces is cancelled. `file` is what has the descriptor, if
/// the caller has more than its number. `own`: no callback of the program's makes the descriptor ready.
pub(crate) fn add(
    core: &Core,
    fd: RawFd,
    direction: Direction,
    handle: Ref,
    file: Option<Ref>,
    own: bool,
) -> Result<(), Raised> {
    core.check_process()?;
    if core.fds.source(fd).is_some() {
        // SAFETY: reading a static of the interpreter.
        let kind = unsafe { ffi::PyExc_RuntimeError };
        raise_message(kind, &format!("File descriptor {fd} is used by a transport"));
        return Err(Raised);
    }
    ensure(core, fd)?;
    let Some(watch) = core.fds.watch(fd) else { return Ok(()) };
    if own {
        core.fds.count_callbacks(watch.callbacks(), 0);
        watch.own.set(true);
    }
    let old = watch.put(&core.fds, direction, Some(handle));
    let same = file.as_ref().is_some_and(|file| watch.is_of(file.as_ptr()));
    if old.is_some() && !same && watch.mode.get() != Mode::Unregistered {
        watch.mode.set(Mode::Doubtful);
    }
    watch.set_after(direction).set(core.counters.polls.get());
    if let Err(error) = update(core, fd) {
        if let Some(watch) = core.fds.watch(fd) {
            let failed = watch.put(&core.fds, direction, old);
            if watch.interest().is_none() {
                drop(core.fds.remove(fd));
            }
            drop(failed);
        }
        return Err(raise_io(&error));
    }
    // What is ready already is told in the next turn, as in asyncio, however busy the loop is.
    core.touched.set(true);
    let former = match core.fds.watch(fd) {
        Some(watch) if file.is_some() => {
            let former = watch.file.take();
            watch.file.set(file);
            former
        }
        _ => None,
    };
    release(old);
    drop(former);
    Ok(())
}

/// Takes away the callback of one side. True if there was one.
pub(crate) fn remove(core: &Core, fd: RawFd, direction: Direction) -> bool {
    let Some(watch) = core.fds.watch(fd) else { return false };
    let side = watch.side(direction);
    if side.is_empty() || !is_handle(side.as_ptr()) {
        return false;
    }
    let old = watch.put(&core.fds, direction, None);
    // Taking an interest back cannot fail in a way that the caller could act on.
    let _ = update(core, fd);
    release(old);
    true
}

/// Lets a replaced or removed waiter go: a handle is cancelled, as asyncio does it.
fn release(waiter: Option<Ref>) {
    if let Some(waiter) = waiter
        && is_handle(waiter.as_ptr())
    {
        // SAFETY: just tested.
        unsafe { Handle::of(waiter.as_ptr()) }.cancel();
    }
}

/// Waits until `fd` is ready: `waiter` is completed then if it is a future, and goes on if it is a call. `socket`
/// says whose descriptor it is.
pub(crate) fn wait(
    core: &Core,
    fd: RawFd,
    direction: Direction,
    socket: &Ref,
    waiter: Ref,
) -> Result<(), Raised> {
    core.check_process()?;
    core.check_usable()?;
    if core.fds.source(fd).is_some() {
        return Err(used_by_transport(core, socket));
    }
    let known = core.fds.watch(fd).is_some_and(|watch| watch.has_edge_of(socket));
    // Made before the watch is looked up for good: on 3.11 making an object can run the collector.
    let owner = if known { None } else { Some(weak_reference(socket)?) };
    ensure(core, fd)?;
    let Some(watch) = core.fds.watch(fd) else { return Ok(()) };
    let old = watch.put(&core.fds, direction, Some(waiter));
    let outcome = if watch.has_handle() || core.polling.get() || matches!(watch.mode.get(), Mode::Level(_)) {
        update(core, fd).map_err(|error| raise_io(&error))
    } else {
        keep_edge(core, fd, watch, owner)
    };
    if outcome.is_err() {
        drop(core.fds.watch(fd).and_then(|watch| watch.put(&core.fds, direction, None)));
    }
    release(old);
    outcome
}

/// `RuntimeError`, in asyncio's words, for a descriptor that a transport reads from.
#[cold]
fn used_by_transport(core: &Core, socket: &Ref) -> Raised {
    let refused = method(&core.this(), imports()._ensure_fd_no_transport.as_ptr(), &[socket.as_ptr()]);
    if refused.is_ok() {
        // The transport is closing; its descriptor is still its own.
        // SAFETY: reading a static of the interpreter.
        raise_message(unsafe { ffi::PyExc_RuntimeError }, "File descriptor is used by a transport");
    }
    Raised
}

fn weak_reference(object: &Ref) -> Result<Ref, Raised> {
    // SAFETY: a live object; objects without weak references raise.
    unsafe { Ref::from_owned(ffi::PyWeakref_NewRef(object.as_ptr(), std::ptr::null_mut())) }.ok_or(Raised)
}

/// Makes sure that `fd` is registered for edges, for this very socket: `owner`, unless it is already.
fn keep_edge(core: &Core, fd: RawFd, watch: &Watch, owner: Option<Ref>) -> Result<(), Raised> {
    let (Some(poller), Some(owner)) = (core.poller(), owner) else { return Ok(()) };
    let token = core.fds.token(fd);
    let registered = match poller.register_edge(fd, token, Interest::BOTH) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            poller.reregister_edge(fd, token, Interest::BOTH)
        }
        other => other,
    };
    registered.map_err(|error| raise_io(&error))?;
    watch.mode.set(Mode::Edge);
    watch.owner.set(Some(owner));
    Ok(())
}

fn refers_to(weak: &Slot, object: &Ref) -> bool {
    if weak.is_empty() {
        return false;
    }
    let mut referent = std::ptr::null_mut();
    // SAFETY: the slot holds a weak reference; the call gives an owned reference or null.
    unsafe {
        ffi::compat::PyWeakref_GetRef(weak.as_ptr(), &mut referent);
        Ref::from_owned(referent).is_some_and(|referent| referent.as_ptr() == object.as_ptr())
    }
}

/// Ends the wait of `waiter`, if it still waits.
pub(crate) fn unwait(core: &Core, fd: RawFd, direction: Direction, waiter: *mut ffi::PyObject) {
    let Some(watch) = core.fds.watch(fd) else { return };
    let side = watch.side(direction);
    if side.as_ptr() == waiter {
        let own = side.take();
        if matches!(watch.mode.get(), Mode::Level(_)) {
            // As in `remove`.
            let _ = update(core, fd);
        }
        drop(own);
    }
}

/// The interest as the selectors module writes it: bit 0 read, bit 1 write. For the selector facade.
pub(crate) fn selector_events(core: &Core, fd: RawFd) -> u32 {
    let Some(watch) = core.fds.watch(fd) else { return 0 };
    u32::from(!watch.reader.is_empty()) | u32::from(!watch.writer.is_empty()) << 1
}

/// The handle of one side, for whoever reads the selector facade.
pub(crate) fn selector_handle(core: &Core, fd: RawFd, direction: Direction) -> Option<Ref> {
    core.fds.watch(fd)?.side(direction).get().filter(|waiter| is_handle(waiter.as_ptr()))
}
