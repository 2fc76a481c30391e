//! The loop's part of a recording: writes the loop's events while there is one.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::ptr::null;
use std::sync::Arc;

use crate::recorder::clock::Clock;
use crate::recorder::event::{Event, Kind, Origin, transfer};
use crate::recorder::recording::{Recording, current, generation};

#[derive(Debug)]
pub(crate) struct LoopRecorder {
    /// The recording, or null. Without one, this is all that is looked at.
    recording: Cell<*const Recording>,
    /// Keeps it alive.
    owner: RefCell<Option<Arc<Recording>>>,
    generation: Cell<u32>,
    origin: Cell<Origin>,
    /// The number of the turn of the last event, as far as it matters for turns without a poll.
    turn: Cell<u64>,
}

impl Default for LoopRecorder {
    fn default() -> LoopRecorder {
        LoopRecorder {
            recording: Cell::new(null()),
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
        !self.recording.get().is_null()
    }

    /// Takes notice of a recording that was started or stopped. `thread` is the one that runs the loop, by the system's
    /// number. Returns whether there is a recording.
    pub(crate) fn refresh(&self, thread: u64) -> bool {
        let generation = generation();
        if self.generation.replace(generation) != generation {
            let recording = current().filter(|recording| recording.generation == generation);
            self.recording.set(recording.as_ref().map_or(null(), Arc::as_ptr));
            drop(self.owner.replace(recording));
        }
        if let Some(recording) = &*self.owner.borrow() {
            self.origin.set(recording.origin(thread));
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
        // SAFETY: null, or the recording that `owner` keeps alive. Only `refresh` replaces both, with the GIL held, and
        // nothing below releases the GIL.
        let Some(recording) = (unsafe { self.recording.get().as_ref() }) else { return };
        let Some(number) = number(recording) else { return };
        if recording.clock == Clock::Counter {
            self.push(recording, Clock::Counter, kind, number);
        } else {
            self.push_slowly(recording, kind, number);
        }
    }

    #[inline(always)]
    fn push(&self, recording: &Recording, clock: Clock, kind: Kind, number: u64) {
        let origin = self.origin.get();
        if origin.begins_turn() {
            self.origin.set(origin.without_turn());
        }
        recording.loops.push(Event::new(clock.now(), kind, origin, number));
    }

    /// Out of line, so that the other way is without a call.
    #[cold]
    #[inline(never)]
    fn push_slowly(&self, recording: &Recording, kind: Kind, number: u64) {
        self.push(recording, recording.clock, kind, number);
    }
}
