//! The loop's part of a recording: writes the loop's events while there is one.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::ptr::null;
use std::rc::Rc;
use std::sync::Arc;

use crate::capi::section::FREE_THREADED;
use crate::recorder::clock::Clock;
use crate::recorder::event::{Event, Kind, Origin, transfer};
use crate::recorder::recording::{LoopRing, Recording, current, generation};

#[derive(Debug)]
pub(crate) struct LoopRecorder {
    /// What is written to, or null. Without a recording, this is all that is looked at.
    destination: Cell<*const Destination>,
    /// Keeps it alive.
    owner: RefCell<Option<Rc<Destination>>>,
    generation: Cell<u32>,
    origin: Cell<Origin>,
    /// The number of the turn of the last event, as far as it matters for turns without a poll.
    turn: Cell<u64>,
}

/// A recording, and the loop's ring in it.
#[derive(Debug)]
struct Destination {
    recording: Arc<Recording>,
    ring: Arc<LoopRing>,
}

impl Drop for Destination {
    fn drop(&mut self) {
        self.ring.give_back();
    }
}

impl Default for LoopRecorder {
    fn default() -> LoopRecorder {
        LoopRecorder {
            destination: Cell::new(null()),
            owner: RefCell::default(),
            generation: Cell::new(0),
            origin: Cell::default(),
            turn: Cell::default(),
        }
    }
}

impl LoopRecorder {
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        !self.destination.get().is_null()
    }

    /// Takes notice of a recording that was started or stopped. `thread` is the one that runs the loop, by the system's
    /// number. Returns whether there is a recording.
    pub(crate) fn refresh(&self, thread: u64) -> bool {
        let generation = generation();
        if self.generation.replace(generation) != generation {
            let recording = current().filter(|recording| recording.generation == generation);
            let destination = recording.and_then(|recording| {
                let ring = recording.loop_ring()?;
                Some(Rc::new(Destination { recording, ring }))
            });
            self.destination.set(destination.as_ref().map_or(null(), Rc::as_ptr));
            drop(self.owner.replace(destination));
        }
        if let Some(destination) = &*self.owner.borrow() {
            self.origin.set(destination.recording.origin(thread));
        }
        self.is_on()
    }

    /// The next event is of the turn with this number, which had no poll. If it is the first one of the turn, it records
    /// that the turn begins: this saves an event of its own.
    pub(crate) fn note_turn(&self, number: u64) {
        if self.turn.replace(number) != number {
            self.origin.set(self.origin.get().with_turn());
        }
    }

    /// Records an event, if there is a recording.
    #[inline(always)]
    pub(crate) fn note(&self, kind: Kind, number: u64) {
        self.note_with(kind, || number);
    }

    /// As [`LoopRecorder::note`], with a number that is computed only for a recording.
    #[inline(always)]
    pub(crate) fn note_with(&self, kind: Kind, number: impl FnOnce() -> u64) {
        if self.is_on() {
            self.write_number(kind, number());
        }
    }

    /// Records what a system call has received, if it has.
    #[inline(always)]
    pub(crate) fn received(&self, fd: RawFd, count: isize) {
        if self.is_on() && count > 0 {
            self.write_number(Kind::Received, transfer(fd, count as usize));
        }
    }

    /// Records that the loop ([`Kind::Flush`]) or a callback ([`Kind::Write`]) begins to send. `pending` is how many
    /// bytes there are to send.
    #[inline(always)]
    pub(crate) fn sends(&self, kind: Kind, fd: RawFd, pending: impl FnOnce() -> usize) {
        self.note_with(kind, || transfer(fd, pending()));
    }

    /// Records that this is over. `left` is how many of the bytes were not sent.
    #[inline(always)]
    pub(crate) fn sent(&self, fd: RawFd, left: impl FnOnce() -> usize) {
        self.note_with(Kind::Written, || transfer(fd, left()));
    }

    #[cold]
    #[inline(never)]
    fn write_number(&self, kind: Kind, number: u64) {
        self.write(kind, |_| Some(number));
    }

    /// Writes an event with the number that `number` gives; without one, nothing is written. `number` runs no Python
    /// code.
    #[inline(always)]
    pub(crate) fn write(&self, kind: Kind, number: impl FnOnce(&Recording) -> Option<u64>) {
        if self.destination.get().is_null() {
            return;
        }
        // Without a GIL, `number` may wait for a lock, and another thread may be in the loop's section meanwhile.
        let _kept = if FREE_THREADED { self.owner.borrow().clone() } else { None };
        // SAFETY: not null, so it is the destination that `owner` keeps alive. Only `refresh` replaces both: with the GIL
        // held, and nothing below releases it; without a GIL in the loop's section, and there is another owner above.
        let destination = unsafe { &*self.destination.get() };
        let Some(number) = number(&destination.recording) else { return };
        if FREE_THREADED && !destination.recording.is_active() {
            // The loop takes notice of the end when it next waits.
            return;
        }
        if destination.recording.clock == Clock::Counter {
            self.push(destination, Clock::Counter, kind, number);
        } else {
            self.push_slowly(destination, kind, number);
        }
    }

    #[inline(always)]
    fn push(&self, destination: &Destination, clock: Clock, kind: Kind, number: u64) {
        let origin = self.origin.get();
        if origin.begins_turn() {
            self.origin.set(origin.without_turn());
        }
        destination.ring.ring.push(Event::new(clock.now(), kind, origin, number));
    }

    /// Out of line, so that the other way is without a call.
    #[cold]
    #[inline(never)]
    fn push_slowly(&self, destination: &Destination, kind: Kind, number: u64) {
        self.push(destination, destination.recording.clock, kind, number);
    }
}
