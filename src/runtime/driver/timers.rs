//! The timers of sleeps: entries inside their futures, and the heap that points to them.
//!
//! Rules of access to a [`TimerEntry`]:
//!
//! 1. `slot` and `waker` are touched only under the lock of the heap. So is `slack`, except that the owner sets
//!    it before the entry is armed.
//! 2. An entry in the heap is ARMED. It does not move and is not freed before it is taken out.
//! 3. Firing an entry stores FIRED as its very last access. So an owner that sees FIRED may free the entry
//!    without the lock. Any other owner takes the lock and removes the entry first.
//!
//! Time is counted in nanoseconds since the heap was made: deadlines compare as integers, and 64 bits last for
//! 584 years.
//!
//! **Slack.** A single sleep ends as precisely as the system allows. But if thousands of long sleeps end a few
//! microseconds apart, each costs a wait, and a wait costs ten times as much as firing a timer. So each timer
//! has a slack, a small part of the duration that it was armed for. After a wait has fired timers, the next wait
//! ends only when the slack of its first timer has passed as well. It then fires all timers that came due
//! meanwhile.
//!
//! **Cancelled timers.** Most timeouts are cancelled within microseconds, and new ones are armed all the time.
//! Arming the first one ends the wait of the worker in the driver, so that the next wait can end in time. By
//! then the timeout is cancelled. A worker that now waited without a deadline would be woken again by the next
//! timeout, and so on. So the next wait keeps the deadline of the timer that ended the last one
//! (`Queue::promised`), even if that timer was cancelled. Later timeouts of the same length end after it, so they
//! wake no worker. The cost is one wait that ends for nothing.

use std::cell::Cell;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::poison::unpoisoned;
use crate::reactor::Wait;
use crate::runtime::shim::{AtomicU8, AtomicU64, Mutex, UnsafeCell};
use crate::runtime::trace::{self, TraceEvent, Tracer};
use crate::runtime::{clock, wakers};
use crate::timer::{Slot, Slotted, TimerHeap};

const UNARMED: u8 = 0;
const ARMED: u8 = 1;
const FIRED: u8 = 2;

/// The value of `Queue::waiting_until` while nobody waits. No deadline is earlier, so none has to end a wait.
const NOBODY: u64 = 0;
const NEVER: u64 = u64::MAX;

/// A timer's slack is its duration divided by this, and at most [`MAX_SLACK`].
const SLACK_PART: u32 = 16;
/// The longest slack, in microseconds.
const MAX_SLACK: u32 = 1000;

/// The timer of one sleep, inside the sleep.
pub(in super::super) struct TimerEntry {
    state: AtomicU8,
    /// The slack in microseconds.
    slack: Cell<u16>,
    slot: Cell<Slot>,
    waker: UnsafeCell<Option<Waker>>,
    _pinned: PhantomPinned,
}

// SAFETY: the state is atomic, and the rest is under the lock (rule 1).
unsafe impl Send for TimerEntry {}
// SAFETY: the state is atomic, and the rest is under the lock (rule 1).
unsafe impl Sync for TimerEntry {}

/// The heap's pointer to an entry; valid while it is in the heap (rule 2).
struct EntryRef(NonNull<TimerEntry>);

// SAFETY: entries are `Send` and `Sync`.
unsafe impl Send for EntryRef {}

impl Slotted for EntryRef {
    fn set_slot(&self, slot: Slot) {
        // SAFETY: valid by rule 2. The heap calls this under the lock.
        unsafe { self.0.as_ref() }.slot.set(slot);
    }
}

impl EntryRef {
    /// Marks the entry, which has just left the heap, as fired. Returns its waker.
    fn fire(self) -> Option<Waker> {
        // SAFETY: until FIRED is stored the owner cannot free the entry without the lock, which we hold.
        let entry = unsafe { self.0.as_ref() };
        // SAFETY: under the heap's lock (rule 1).
        let waker = entry.waker.with_mut(|waker| unsafe { (*waker).take() });
        // Ordering: Release pairs with `has_fired`. This is the last access to the entry (rule 3).
        entry.state.store(FIRED, Release);
        waker
    }
}

impl TimerEntry {
    pub(in super::super) fn new() -> TimerEntry {
        TimerEntry {
            state: AtomicU8::new(UNARMED),
            slack: Cell::new(0),
            slot: Cell::new(Slot::NONE),
            waker: UnsafeCell::new(None),
            _pinned: PhantomPinned,
        }
    }

    /// A model calls this where the owner would free the entry. To the model, any later access by another
    /// thread is an error.
    #[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
    pub(super) fn is_freed(&self) {
        self.waker.with_mut(|_| ());
    }

    /// Sets the slack for a timer of this duration, before it is armed.
    pub(in super::super) fn set_slack(&self, duration: Duration) {
        let part = duration.subsec_micros() / SLACK_PART;
        self.slack.set(if duration.as_secs() > 0 { MAX_SLACK } else { part.min(MAX_SLACK) } as u16);
    }

    pub(in super::super) fn has_fired(&self) -> bool {
        // Ordering: pairs with `fire`.
        self.state.load(Acquire) == FIRED
    }

    /// Whether the entry is in the heap, or has just left it to be fired.
    pub(in super::super) fn is_armed(&self) -> bool {
        // Ordering: pairs with `fire`. If it is not ARMED any more, nobody touches the entry.
        self.state.load(Acquire) == ARMED
    }
}

pub(in super::super) struct Timers {
    epoch: Instant,
    /// The epoch on the clock of `clock.rs`, in nanoseconds.
    origin: u64,
    tracer: Option<Arc<dyn Tracer>>,
    queue: Mutex<Queue>,
    /// The first deadline, for readers without the lock. It is NEVER if there is none.
    next: AtomicU64,
    /// How many have fired, for the metrics. Written under the lock.
    fired: AtomicU64,
}

struct Queue {
    heap: TimerHeap<u64, EntryRef>,
    /// When the current wait ends by itself.
    waiting_until: u64,
    /// The next wait must end by this time: the deadline of the timer that ended the last wait, even if that
    /// timer was cancelled since.
    promised: u64,
    /// When timers were last fired, or 0 if some that were due are still in the heap.
    served: u64,
    closed: bool,
}

impl Queue {
    /// When a wait for `entry`, due at `when`, has to end. The caller holds the lock.
    fn end_of_wait(&self, when: u64, entry: &TimerEntry) -> u64 {
        when.max(self.served.saturating_add(u64::from(entry.slack.get()) * 1000))
    }
}

/// The present on both clocks. Between the two looks no more passes than the system needs for them, unless it
/// interrupts this thread each time.
fn this_moment() -> (Instant, u64) {
    let look = || {
        let before = clock::nanos();
        let epoch = Instant::now();
        (clock::nanos() - before, epoch, before)
    };
    let [first, second, third] = [look(), look(), look()];
    let (_, epoch, origin) = first.min(second).min(third);
    (epoch, origin)
}

/// The most timers that one turn fires. A burst of thousands is served in parts: the first tasks run, and other
/// workers join, while the last ones are still in the heap.
const BATCH: u64 = 128;

/// The result of arming a timer.
#[must_use]
#[derive(PartialEq, Eq)]
pub(in super::super) enum Armed {
    /// The timer is in the heap.
    Waiting,
    /// The timer is in the heap, and due before the current wait ends: end the wait.
    EndWait,
    /// The runtime has ended.
    Closed,
}

impl Timers {
    pub(super) fn new(tracer: Option<Arc<dyn Tracer>>) -> Timers {
        let (epoch, origin) = this_moment();
        Timers {
            epoch,
            origin,
            tracer,
            queue: Mutex::new(Queue {
                heap: TimerHeap::new(),
                waiting_until: NOBODY,
                promised: NEVER,
                served: 0,
                closed: false,
            }),
            next: AtomicU64::new(NEVER),
            fired: AtomicU64::new(0),
        }
    }

    fn ticks(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos().min(u128::from(NEVER - 1)) as u64
    }

    fn instant(&self, ticks: u64) -> Instant {
        self.epoch.checked_add(Duration::from_nanos(ticks)).unwrap_or(self.epoch)
    }

    /// Puts an entry that was never armed into the heap.
    ///
    /// # Safety
    /// The entry must be passed to [`Timers::cancel`] before it is freed, unless it has fired. Always use the
    /// same `Timers`.
    pub(in super::super) unsafe fn arm(
        &self,
        entry: Pin<&TimerEntry>,
        deadline: Instant,
        waker: &Waker,
    ) -> Armed {
        let when = self.ticks(deadline);
        let waker = waker.clone();
        let mut queue = unpoisoned(self.queue.lock());
        if queue.closed {
            return Armed::Closed;
        }
        // SAFETY: under the heap's lock (rule 1).
        entry.waker.with_mut(|slot| unsafe { *slot = Some(waker) });
        entry.state.store(ARMED, Relaxed);
        queue.heap.insert(when, EntryRef(NonNull::from(entry.get_ref())));
        if when < self.next.load(Relaxed) {
            self.next.store(when, Relaxed);
        }
        let until = queue.end_of_wait(when, &entry);
        if until < queue.waiting_until {
            // Once is enough: the woken thread looks at the heap again.
            queue.waiting_until = NOBODY;
            queue.promised = until;
            return Armed::EndWait;
        }
        Armed::Waiting
    }

    /// Sets the waker to wake. Returns false if the entry has fired meanwhile.
    pub(in super::super) fn refresh(&self, entry: Pin<&TimerEntry>, waker: &Waker) -> bool {
        let queue = unpoisoned(self.queue.lock());
        if entry.has_fired() {
            return false;
        }
        // SAFETY: under the heap's lock (rule 1).
        let replaced = entry.waker.with_mut(|slot| wakers::store(unsafe { &mut *slot }, waker));
        drop(queue);
        drop(replaced);
        true
    }

    /// Removes an armed entry from the heap. Nothing touches it afterwards.
    pub(in super::super) fn cancel(&self, entry: &TimerEntry) {
        let mut queue = unpoisoned(self.queue.lock());
        if entry.has_fired() {
            return;
        }
        let slot = entry.slot.get();
        queue.heap.remove(slot);
        // `next` may now be too early, which costs one needless look.
        entry.state.store(UNARMED, Relaxed);
        // SAFETY: under the heap's lock (rule 1).
        let waker = entry.waker.with_mut(|waker| unsafe { (*waker).take() });
        drop(queue);
        drop(waker);
    }

    /// Whether a deadline has passed.
    pub(super) fn has_due(&self) -> bool {
        let next = self.next.load(Relaxed);
        next != NEVER && next <= self.ticks(Instant::now())
    }

    /// Returns how long the driver may wait.
    pub(super) fn begin_wait(&self) -> Wait {
        let mut queue = unpoisoned(self.queue.lock());
        let first = queue.heap.peek_item();
        // SAFETY: in the heap, so valid (rule 2).
        let first = first.map_or(NEVER, |(when, entry)| queue.end_of_wait(when, unsafe { entry.0.as_ref() }));
        let until = first.min(queue.promised);
        queue.waiting_until = until;
        if until == NEVER {
            return Wait::Forever;
        }
        match until.saturating_sub(self.ticks(Instant::now())) {
            0 => Wait::Not,
            left => Wait::Until { at: self.origin.saturating_add(until), left: Duration::from_nanos(left) },
        }
    }

    /// The wait is over: takes out what is due, up to a batch. The rest is for the next turn, which follows at
    /// once: with a timer due, a wait does not block.
    pub(super) fn end_wait(&self, ready: &mut Vec<Waker>) {
        let mut queue = unpoisoned(self.queue.lock());
        queue.waiting_until = NOBODY;
        if queue.heap.is_empty() && queue.promised == NEVER {
            return;
        }
        let now = self.ticks(Instant::now());
        if queue.promised <= now {
            queue.promised = NEVER;
        }
        let mut fired = self.fired.load(Relaxed);
        let enough = fired + BATCH;
        while fired < enough
            && let Some((when, entry)) = queue.heap.pop_due(now)
        {
            if let Some(tracer) = &self.tracer {
                trace::report(&**tracer, TraceEvent::TimerFired { deadline: self.instant(when) });
            }
            ready.extend(entry.fire());
            fired += 1;
        }
        if fired > self.fired.load(Relaxed) {
            // If timers that are due remain, the next wait adds no slack.
            queue.served = if fired < enough { now } else { 0 };
            self.fired.store(fired, Relaxed);
        }
        self.next.store(queue.heap.peek().unwrap_or(NEVER), Relaxed);
    }

    // ---- for a runtime with a simulated clock, which takes the place of `begin_wait` and `end_wait`

    /// The first deadline. A timer that is armed before it ends the wait that follows.
    pub(in super::super) fn begin_simulated_wait(&self) -> Option<Instant> {
        let mut queue = unpoisoned(self.queue.lock());
        let first = queue.heap.peek();
        queue.waiting_until = first.unwrap_or(NEVER);
        first.map(|when| self.instant(when))
    }

    /// The wait is over. Returns how many timers are due.
    pub(in super::super) fn end_simulated_wait(&self, now: Instant) -> usize {
        let mut queue = unpoisoned(self.queue.lock());
        queue.waiting_until = NOBODY;
        let now = self.ticks(now);
        if queue.heap.peek().is_none_or(|first| first > now) {
            return 0;
        }
        queue.heap.iter().filter(|(when, _)| **when <= now).count()
    }

    /// Fires one of the timers that are due at `now`. Number 0 is the first of them; the others have no particular
    /// order, but the same one each time.
    pub(in super::super) fn fire_due(&self, now: Instant, index: usize) {
        let mut queue = unpoisoned(self.queue.lock());
        let now = self.ticks(now);
        let due = queue.heap.iter().filter(|(when, _)| **when <= now).nth(index);
        // SAFETY: in the heap, so valid (rule 2).
        let due = due.map(|(when, entry)| (*when, unsafe { entry.0.as_ref() }.slot.get()));
        let Some((when, slot)) = due else { return };
        let Some(entry) = queue.heap.remove(slot) else { return };
        if let Some(tracer) = &self.tracer {
            trace::report(&**tracer, TraceEvent::TimerFired { deadline: self.instant(when) });
        }
        let waker = entry.fire();
        self.fired.fetch_add(1, Relaxed);
        self.next.store(queue.heap.peek().unwrap_or(NEVER), Relaxed);
        drop(queue);
        wakers::wake_all(waker);
    }

    /// How many timers came due so far.
    pub(in super::super) fn fired(&self) -> u64 {
        self.fired.load(Relaxed)
    }

    /// Fires everything, and refuses timers that come later.
    pub(super) fn close(&self, ready: &mut Vec<Waker>) {
        let mut queue = unpoisoned(self.queue.lock());
        queue.closed = true;
        for (_, entry) in queue.heap.drain() {
            ready.extend(entry.fire());
        }
        queue.promised = NEVER;
        self.next.store(NEVER, Relaxed);
    }

    /// How many timers wait.
    pub(in super::super) fn len(&self) -> usize {
        unpoisoned(self.queue.lock()).heap.len()
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use std::pin::pin;

    use super::*;

    /// Arms a timer and cancels it. Returns whether it ended the wait.
    fn arm_and_cancel(timers: &Timers, deadline: Instant) -> bool {
        let entry = pin!(TimerEntry::new());
        // SAFETY: cancelled in the next line.
        let armed = unsafe { timers.arm(entry.as_ref(), deadline, Waker::noop()) };
        timers.cancel(&entry);
        armed == Armed::EndWait
    }

    #[test]
    fn timeouts_cancelled_one_after_the_other_end_only_one_wait() {
        let timers = Timers::new(None);
        let start = Instant::now();
        assert_eq!(timers.begin_wait(), Wait::Forever);
        let mut ended = 0;
        for n in 0..1000 {
            if arm_and_cancel(&timers, start + Duration::from_millis(60_000 + n)) {
                ended += 1;
                timers.end_wait(&mut Vec::new());
                assert!(
                    matches!(timers.begin_wait(), Wait::Until { left, .. } if left <= Duration::from_secs(60))
                );
            }
        }
        assert_eq!(ended, 1);
        assert!(arm_and_cancel(&timers, start + Duration::from_secs(1)), "an earlier one is waited for");
    }

    #[test]
    fn nothing_is_due_after_the_end() {
        let timers = Timers::new(None);
        let (due, later) = (pin!(TimerEntry::new()), pin!(TimerEntry::new()));
        let start = Instant::now();
        // SAFETY: both are fired below.
        let armed = unsafe {
            [
                timers.arm(due.as_ref(), start, Waker::noop()),
                timers.arm(later.as_ref(), start + Duration::from_secs(60), Waker::noop()),
            ]
        };
        assert!(armed.iter().all(|armed| *armed != Armed::Closed));
        assert!(timers.has_due());
        let mut ready = Vec::new();
        timers.close(&mut ready);
        assert_eq!(ready.len(), 2);
        assert!(due.has_fired() && later.has_fired() && !timers.has_due());
        assert_eq!(timers.begin_wait(), Wait::Forever);
        let refused = pin!(TimerEntry::new());
        // SAFETY: a closed heap takes no entry.
        let armed = unsafe { timers.arm(refused.as_ref(), start, Waker::noop()) };
        assert!(armed == Armed::Closed && !refused.is_armed() && !timers.has_due());
    }

    #[test]
    fn a_wait_for_a_cancelled_timer_is_not_repeated() {
        let timers = Timers::new(None);
        assert_eq!(timers.begin_wait(), Wait::Forever);
        assert!(arm_and_cancel(&timers, Instant::now()));
        timers.end_wait(&mut Vec::new());
        assert_eq!(timers.begin_wait(), Wait::Forever);
    }
}
