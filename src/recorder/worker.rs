//! The writer of a thread that holds no GIL: a worker of the runtime.

use std::cell::RefCell;
use std::sync::Arc;

use super::event::{Event, Kind, Origin};
use super::recording::{WorkerRing, current, generation};

/// Writes a worker's events, while there is a recording. It belongs to one thread.
#[derive(Debug, Default)]
pub(crate) struct WorkerRecorder(RefCell<Option<Arc<WorkerRing>>>);

impl WorkerRecorder {
    /// Records an event. With no recording, this loads one flag.
    #[inline(always)]
    pub(crate) fn note(&self, kind: Kind, number: impl FnOnce() -> u64) {
        let generation = generation();
        if generation != 0 {
            self.write(generation, kind, number());
        }
    }

    #[cold]
    fn write(&self, generation: u32, kind: Kind, number: u64) {
        let mut ring = self.0.borrow_mut();
        if ring.as_ref().is_none_or(|ring| ring.generation != generation) {
            *ring = current().and_then(|recording| recording.add_worker());
        }
        if let Some(WorkerRing { ring, clock, .. }) = ring.as_deref() {
            ring.push(Event::new(clock.now(), kind, Origin::default(), number));
        }
    }

    /// Gives up the memory of a recording that is over. Called before the thread sleeps.
    #[inline(always)]
    pub(crate) fn rest(&self) {
        if generation() == 0 {
            drop(self.0.take());
        }
    }
}
