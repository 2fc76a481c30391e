//! What waits for one descriptor: callbacks of `add_reader` and `add_writer`, and awaitable socket calls.
//!
//! This is the record; what is done with it stands in `watch.rs`.

use std::cell::Cell;

use pyo3::ffi;

use super::super::handle::layout::{Handle, is_handle};
use crate::capi::{Borrowed, Ref, Slot};
use crate::reactor::Interest;

/// Which way a waiter looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// How the descriptor stands in the poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    None,
    Level(Interest),
    Edge,
    /// It was registered, and the number has been given again since. It may be another file's by now, which the poller
    /// does not know.
    Doubtful,
}

/// Per direction a Handle, the future of a socket call, or a socket call that goes on by itself.
#[derive(Debug)]
pub(crate) struct WatchedFd {
    reader: Slot,
    writer: Slot,
    /// The number of the poll after which the callback of each side was set. What that poll reported is not for it: in
    /// asyncio a callback that is replaced, or taken away and set again, takes its place in the next turn.
    set_after: [Cell<u64>; 2],
    pub(crate) registration: Cell<Registration>,
    /// The loop itself watches the descriptor, for signals or for the end of a child: no callback of the program makes
    /// it ready.
    pub(crate) internal: Cell<bool>,
    /// A weak reference to the socket that [`Registration::Edge`] was set up for.
    pub(crate) owner: Slot,
    /// The object that `add_reader` or `add_writer` was given, unless it was a number. Kept alive, as a selector keeps
    /// it, and found by identity once it is closed and has no number any more.
    pub(crate) file: Slot,
}

impl WatchedFd {
    pub(crate) fn new() -> WatchedFd {
        WatchedFd {
            reader: Slot::empty(),
            writer: Slot::empty(),
            set_after: [const { Cell::new(0) }; 2],
            registration: Cell::new(Registration::None),
            internal: Cell::new(false),
            owner: Slot::empty(),
            file: Slot::empty(),
        }
    }

    pub(crate) fn side(&self, direction: Direction) -> &Slot {
        match direction {
            Direction::Read => &self.reader,
            Direction::Write => &self.writer,
        }
    }

    pub(crate) fn set_after(&self, direction: Direction) -> &Cell<u64> {
        &self.set_after[direction as usize]
    }

    /// How many callbacks of the program wait here.
    pub(crate) fn callbacks(&self) -> usize {
        if self.internal.get() { 0 } else { self.handles() }
    }

    pub(crate) fn has_handle(&self) -> bool {
        self.handles() > 0
    }

    fn handles(&self) -> usize {
        [&self.reader, &self.writer].iter().filter(|slot| look(slot, is_handle) == Some(true)).count()
    }

    /// Was `file` what this descriptor was given as?
    pub(crate) fn is_of(&self, file: *mut ffi::PyObject) -> bool {
        self.file.as_ptr() == file
    }

    /// Is there a waiter?
    pub(crate) fn is_used(&self) -> bool {
        self.interest().is_some()
    }

    /// Is it registered for edges, for this very socket?
    pub(crate) fn has_edge_of(&self, socket: &Ref) -> bool {
        self.registration.get() == Registration::Edge && refers_to(&self.owner, socket)
    }

    /// What a level-triggered registration has to ask for.
    pub(crate) fn interest(&self) -> Option<Interest> {
        Interest::of(!self.reader.is_empty(), !self.writer.is_empty())
    }

    /// The loop is closed: nothing here will run.
    pub(crate) fn empty(&self) {
        for side in [&self.reader, &self.writer] {
            if let Some(handle) = side.take().as_ref().and_then(Handle::from_object) {
                handle.empty();
            }
        }
    }

    /// For the collector. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        for slot in [&self.reader, &self.writer, &self.owner, &self.file] {
            look(slot, &mut *visit);
        }
    }
}

/// Looks at what a slot holds. `look` runs no Python code, so the slot keeps it meanwhile.
fn look<T>(slot: &Slot, look: impl FnOnce(&Ref) -> T) -> Option<T> {
    // SAFETY: null, or an object that the slot holds a reference to.
    unsafe { Borrowed::from_nullable(slot.as_ptr()) }.map(|object| look(&object))
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
