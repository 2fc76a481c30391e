//! The recording of this process: at most one at a time.
//!
//! Its generation is the flag that workers of the runtime load before each event; loops are told by their own room.
//! A forked child begins without one.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use super::clock::{Clock, Moment, Scale};
use super::event::{Origin, TRACKS};
use super::names::Names;
use super::ring::{Content, Ring};
use super::thread::thread_number;
use super::trace::{Snapshot, Track};
use crate::fork::ForkMutex;
use crate::one_user::OneUser;

/// The ring of a worker has this part of the size of the loops' ring.
const WORKERS_PART: usize = 4;

/// The most workers that are recorded: as many as a runtime has at most. And the most loops that run at a time.
const MOST_WORKERS: usize = 1024;

/// The recording that is active. Locked for a moment, and nobody waits for the GIL meanwhile.
static CURRENT: ForkMutex<Option<Arc<Recording>>> = ForkMutex::new(None);
/// The generation of the last recording. Changes under the lock.
static LAST: AtomicU32 = AtomicU32::new(0);
/// The generation of the recording that is active, or 0.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// In a forked child: its parent's recording is not its own. That is leaked, because one of the parent's threads may
/// have held a lock of it at the fork.
pub(crate) fn forked() {
    GENERATION.store(0, Relaxed);
    // SAFETY: the child has one thread, and that is not in a function of this file, because it forks.
    unsafe { CURRENT.renew(None) };
}

/// A recording, active or ended.
#[derive(Debug)]
pub(crate) struct Recording {
    /// It ends when another one is started.
    pub(crate) gives_way: bool,
    pub(crate) generation: u32,
    pub(crate) clock: Clock,
    started: Moment,
    /// When it was stopped, in ticks; 0 while it is active.
    ended: AtomicU64,
    /// The rings of the loops. There is one that all use, or as many as loops have been recorded at a time.
    rings: Mutex<Vec<Arc<LoopRing>>>,
    /// Do all loops use one ring? Then the order of its events says which loop had the GIL.
    one_ring: bool,
    pub(crate) names: Names,
    size: usize,
    /// The threads of the loops, indexed by track.
    threads: Mutex<Vec<u64>>,
    workers: Mutex<Vec<Arc<WorkerRing>>>,
}

/// A ring for the events of loops. It has one writer at a time: the loop that has taken it, or whoever holds the GIL.
#[derive(Debug)]
pub(crate) struct LoopRing {
    pub(crate) ring: Ring,
    user: OneUser,
}

impl LoopRing {
    fn new(bytes: usize) -> Option<Arc<LoopRing>> {
        Some(Arc::new(LoopRing { ring: Ring::new(bytes)?, user: OneUser::new() }))
    }

    /// The loop writes no more. What it has written stays.
    pub(crate) fn give_back(&self) {
        self.user.give_back();
    }
}

/// The ring of a worker in one recording.
#[derive(Debug)]
pub(crate) struct WorkerRing {
    pub(super) ring: Ring,
    pub(super) clock: Clock,
    pub(super) generation: u32,
    /// The system's number of the thread, and its name.
    thread: u64,
    name: String,
}

impl WorkerRing {
    /// The ring of the current thread. `None` if there is no memory for one.
    fn new(recording: &Recording, bytes: usize) -> Option<WorkerRing> {
        let name = std::thread::current().name().unwrap_or("worker").to_owned();
        let (clock, generation) = (recording.clock, recording.generation);
        Some(WorkerRing { ring: Ring::new(bytes)?, clock, generation, thread: thread_number(), name })
    }
}

/// The generation of the recording that is active; 0 if there is none.
#[inline(always)]
pub(crate) fn generation() -> u32 {
    // Relaxed: who finds a new generation takes the recording from the lock.
    GENERATION.load(Relaxed)
}

/// The recording that is active.
pub(crate) fn current() -> Option<Arc<Recording>> {
    CURRENT.lock().clone()
}

/// Why no recording was started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is one already.
    Active,
    /// There is no memory for its ring.
    NoMemory,
}

/// Starts a recording with a ring of `size` bytes for all loops, if they have `one_ring`, or for each. One that
/// `gives_way` ends when another is started.
pub(crate) fn start(size: usize, gives_way: bool, one_ring: bool) -> Result<Arc<Recording>, Refused> {
    let is_taken = |active: &Option<Arc<Recording>>| active.as_ref().is_some_and(|active| !active.gives_way);
    if is_taken(&CURRENT.lock()) {
        return Err(Refused::Active);
    }
    let clock = Clock::best();
    // Outside of the lock, because it may take a while.
    let ring = LoopRing::new(size).ok_or(Refused::NoMemory)?;
    let mut active = CURRENT.lock();
    if is_taken(&active) {
        return Err(Refused::Active);
    }
    // Never 0. Relaxed: changes under the lock.
    let generation = LAST.load(Relaxed).checked_add(1).unwrap_or(1);
    LAST.store(generation, Relaxed);
    let recording = Arc::new(Recording {
        gives_way,
        generation,
        clock,
        started: clock.moment(),
        ended: AtomicU64::new(0),
        rings: Mutex::new(vec![ring]),
        one_ring,
        names: Names::new(),
        size,
        threads: Mutex::default(),
        workers: Mutex::default(),
    });
    let earlier = active.replace(Arc::clone(&recording));
    GENERATION.store(generation, Relaxed);
    drop(active);
    if let Some(earlier) = earlier {
        earlier.ended.store(clock.now(), Relaxed);
    }
    Ok(recording)
}

impl Recording {
    /// Ends the recording. What it has recorded stays.
    pub(crate) fn stop(&self) {
        let mut current = CURRENT.lock();
        if self.is_active() {
            GENERATION.store(0, Relaxed);
            self.ended.store(self.clock.now(), Relaxed);
            *current = None;
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        generation() == self.generation
    }

    /// The origin of the events of a loop in this thread. Further threads share the last track.
    pub(crate) fn origin(&self, thread: u64) -> Origin {
        let Ok(mut threads) = self.threads.lock() else { return Origin::default() };
        let track = threads.iter().position(|known| *known == thread).unwrap_or(threads.len());
        if track == threads.len() && track < TRACKS {
            threads.push(thread);
        }
        Origin::track(track.min(TRACKS - 1))
    }

    /// A ring for a loop, until it [gives it back](LoopRing::give_back). `None` if there is no memory for one, or for
    /// too many loops.
    pub(crate) fn loop_ring(&self) -> Option<Arc<LoopRing>> {
        let mut rings = self.rings.lock().ok()?;
        if let Some(ring) = rings.iter().find(|ring| self.one_ring || ring.user.take()) {
            return Some(Arc::clone(ring));
        }
        if rings.len() == MOST_WORKERS {
            return None;
        }
        let ring = LoopRing::new(self.size)?;
        let _ = ring.user.take();
        rings.push(Arc::clone(&ring));
        Some(ring)
    }

    fn rings(&self) -> Vec<Arc<LoopRing>> {
        self.rings.lock().map(|rings| rings.clone()).unwrap_or_default()
    }

    /// The ring of the current thread, which is a worker's. Does not wait: `None` also if another thread has the lock, if
    /// there is no memory, and for more workers than a runtime has.
    pub(super) fn add_worker(&self) -> Option<Arc<WorkerRing>> {
        let mut workers = self.workers.try_lock().ok()?;
        if workers.len() == MOST_WORKERS {
            return None;
        }
        let ring = Arc::new(WorkerRing::new(self, self.size / WORKERS_PART)?);
        workers.push(Arc::clone(&ring));
        Some(ring)
    }

    fn workers(&self) -> Vec<Arc<WorkerRing>> {
        self.workers.lock().map(|workers| workers.clone()).unwrap_or_default()
    }

    /// How many events were recorded, and how many of them were overwritten by later ones.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let (workers, loops) = (self.workers(), self.rings());
        let rings =
            workers.iter().map(|worker| &worker.ring).chain(loops.iter().map(|of_loop| &of_loop.ring));
        rings.map(Ring::counts).fold((0, 0), |sum, ring| (sum.0 + ring.0, sum.1 + ring.1))
    }

    /// What the rings hold. Needs no GIL, and stops no writer.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (mut loops, mut dropped) = (Vec::new(), 0);
        for Content { events, dropped: lost } in self.rings().iter().map(|of_loop| of_loop.ring.read()) {
            loops.extend(events);
            dropped += lost;
        }
        if !self.one_ring {
            // Of two loops that ran in one thread, one after the other.
            loops.sort_by_key(|event| event.ticks);
        }
        let workers = self.workers().into_iter().map(|worker| {
            let content = worker.ring.read();
            dropped += content.dropped;
            Track { thread: worker.thread, name: worker.name.clone(), events: content.events }
        });
        let workers = workers.collect();
        let now = self.clock.moment();
        let ended = self.ended.load(Relaxed);
        Snapshot {
            scale: Scale::between(self.started, now),
            end: if ended == 0 { now.ticks } else { ended },
            names: self.names.get(loops.iter().filter_map(|event| event.name()).collect()),
            threads: self.threads.lock().map(|threads| threads.clone()).unwrap_or_default(),
            loops,
            one_ring: self.one_ring,
            workers,
            dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Event, Kind};
    use super::*;

    /// It is not started: it is not the recording of the process.
    fn recording(one_ring: bool) -> Recording {
        let clock = Clock::best();
        Recording {
            gives_way: false,
            generation: 1,
            clock,
            started: clock.moment(),
            ended: AtomicU64::new(0),
            rings: Mutex::new(vec![LoopRing::new(1024).unwrap()]),
            one_ring,
            names: Names::new(),
            size: 1024,
            threads: Mutex::default(),
            workers: Mutex::default(),
        }
    }

    fn event(number: u64) -> Event {
        Event::new(number, Kind::Park, Origin::default(), 0)
    }

    #[test]
    fn a_snapshot_counts_the_overwritten_events_of_loops_and_workers() {
        let recording = recording(true);
        let workers = [recording.add_worker().unwrap(), recording.add_worker().unwrap()];
        let loops = recording.loop_ring().unwrap();
        for (ring, events) in [(&loops.ring, 70), (&workers[0].ring, 163), (&workers[1].ring, 5)] {
            for number in 0..events {
                ring.push(event(number));
            }
        }
        // A ring of 64 slots keeps 63 events.
        assert_eq!(recording.counts(), (70 + 163 + 5, 7 + 100));
        let snapshot = recording.snapshot();
        assert_eq!(snapshot.dropped, 7 + 100);
        assert_eq!(snapshot.workers.iter().map(|track| track.events.len()).collect::<Vec<_>>(), [63, 5]);
    }

    #[test]
    fn loops_with_rings_of_their_own_use_those_that_were_given_back_and_keep_what_is_in_them() {
        let recording = recording(false);
        let [one, other] = [recording.loop_ring().unwrap(), recording.loop_ring().unwrap()];
        assert!(!Arc::ptr_eq(&one, &other));
        [1, 4].into_iter().for_each(|number| one.ring.push(event(number)));
        [2, 3].into_iter().for_each(|number| other.ring.push(event(number)));
        other.give_back();
        let next = recording.loop_ring().unwrap();
        assert!(Arc::ptr_eq(&next, &other));
        next.ring.push(event(5));
        let events = recording.snapshot().loops;
        assert_eq!(events.iter().map(|event| event.ticks).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(recording.counts(), (5, 0));
    }

    #[test]
    fn loops_that_share_a_ring_take_it_together() {
        let recording = recording(true);
        let [one, other] = [recording.loop_ring().unwrap(), recording.loop_ring().unwrap()];
        assert!(Arc::ptr_eq(&one, &other));
    }
}
