//! The waiters of one descriptor: callbacks of `add_reader` and `add_writer`, and awaitable socket calls.
//!
//! This file has the data; `watch.rs` has the operations.

use std::cell::Cell;

use pyo3::ffi;

use super::super::handle::layout::{Handle, is_handle};
use super::ready::NativeStep;
use crate::capi::{Borrowed, Ref, Slot};
use crate::reactor::Interest;

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// How the descriptor is registered in the poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    None,
    Level(Interest),
    Edge,
    /// It was registered, and then its callback was replaced, but not by a call with the same file object. The number
    /// may belong to another open file by now, which the poller does not know.
    Doubtful,
}

/// The waiters: for each direction a Handle, a future, or an object that goes on when it is woken. `C` is the loop's core.
#[derive(Debug)]
pub(crate) struct WatchedFd<C> {
    sides: [Slot; 2],
    /// For each direction, how its waiter is woken, if it is neither a Handle nor a future.
    wakes: [Cell<Option<NativeStep<C>>>; 2],
    /// For each direction, the number of polls when its callback was set. Events of the last of these polls are not for
    /// it: in asyncio a callback that was replaced, or removed and added again, is called in the next turn.
    set_after: [Cell<u64>; 2],
    pub(crate) registration: Cell<Registration>,
    /// The loop itself watches the descriptor, for signals or for the end of a child process. So its callbacks do not
    /// force a poll in every turn; see `poll_policy.rs`.
    pub(crate) internal: Cell<bool>,
    /// A weak reference to the socket that was registered with [`Registration::Edge`].
    pub(crate) owner: Slot,
    /// The file object that was passed to `add_reader` or `add_writer`, unless it was a number. It is kept alive, as by
    /// a selector. After it was closed it has no number, and `remove_reader` finds it by its identity.
    pub(crate) file: Slot,
}

impl<C> WatchedFd<C> {
    pub(crate) fn new() -> WatchedFd<C> {
        WatchedFd {
            sides: [const { Slot::empty() }; 2],
            wakes: [const { Cell::new(None) }; 2],
            set_after: [const { Cell::new(0) }; 2],
            registration: Cell::new(Registration::None),
            internal: Cell::new(false),
            owner: Slot::empty(),
            file: Slot::empty(),
        }
    }

    pub(crate) fn side(&self, direction: Direction) -> &Slot {
        &self.sides[direction as usize]
    }

    pub(crate) fn wake(&self, direction: Direction) -> &Cell<Option<NativeStep<C>>> {
        &self.wakes[direction as usize]
    }

    pub(crate) fn set_after(&self, direction: Direction) -> &Cell<u64> {
        &self.set_after[direction as usize]
    }

    /// How many callbacks of the program there are.
    pub(crate) fn callbacks(&self) -> usize {
        if self.internal.get() { 0 } else { self.handles() }
    }

    pub(crate) fn has_handle(&self) -> bool {
        self.handles() > 0
    }

    fn handles(&self) -> usize {
        self.sides.iter().filter(|slot| look(slot, is_handle) == Some(true)).count()
    }

    /// Was the descriptor passed as this file object?
    pub(crate) fn is_of(&self, file: *mut ffi::PyObject) -> bool {
        self.file.as_ptr() == file
    }

    /// Is there a waiter?
    pub(crate) fn is_used(&self) -> bool {
        self.interest().is_some()
    }

    /// Is it registered edge-triggered, for this socket object?
    pub(crate) fn has_edge_of(&self, socket: &Ref) -> bool {
        self.registration.get() == Registration::Edge && refers_to(&self.owner, socket)
    }

    /// The interest for a level-triggered registration.
    pub(crate) fn interest(&self) -> Option<Interest> {
        let [reader, writer] = &self.sides;
        Interest::of(!reader.is_empty(), !writer.is_empty())
    }

    /// Empties the handles, because the loop is closed and they will not run.
    pub(crate) fn empty(&self) {
        for side in &self.sides {
            if let Some(handle) = side.take().as_ref().and_then(Handle::from_object) {
                handle.empty();
            }
        }
    }

    /// For the garbage collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        for slot in self.sides.iter().chain([&self.owner, &self.file]) {
            look(slot, &mut *visit);
        }
    }
}

/// Calls `look` with the object in a slot. `look` must run no Python code, so that the slot keeps the object alive.
fn look<T>(slot: &Slot, look: impl FnOnce(&Ref) -> T) -> Option<T> {
    // SAFETY: null, or an object that the slot holds a reference to.
    unsafe { Borrowed::from_nullable(slot.as_ptr()) }.map(|object| look(&object))
}

fn refers_to(weak: &Slot, object: &Ref) -> bool {
    if weak.is_empty() {
        return false;
    }
    let mut referent = std::ptr::null_mut();
    // SAFETY: the slot holds a weak reference. The call stores an owned reference or null.
    unsafe {
        ffi::compat::PyWeakref_GetRef(weak.as_ptr(), &mut referent);
        Ref::from_owned(referent).is_some_and(|referent| referent.as_ptr() == object.as_ptr())
    }
}
