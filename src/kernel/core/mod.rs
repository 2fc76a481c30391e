//! [`Core`], the native state of a loop.
//!
//! Each field of the core is a part with a file of its own. A part owns its state, and uses neither another part nor
//! the core. The core's methods are in `impl Core` blocks here and in `source.rs`, `fork.rs` and `report.rs`.

pub(crate) mod fd_table;
pub(crate) mod gil_fairness;
pub(crate) mod inbox;
pub(crate) mod instrumentation;
pub(crate) mod io;
pub(crate) mod loop_clock;
pub(crate) mod loop_ref;
pub(crate) mod plan;
pub(crate) mod poll_policy;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod ready;
pub(crate) mod run_state;
pub(crate) mod scratch;
pub(crate) mod timers;
pub(crate) mod wakeup;
pub(crate) mod watched_fd;
pub(crate) mod writes;

use std::io as std_io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use self::fd_table::{FdTable, Kind};
use self::gil_fairness::GilFairness;
use self::inbox::Inbox;
use self::instrumentation::Instrumentation;
use self::io::{Io, new_poller};
use self::loop_clock::LoopClock;
use self::loop_ref::LoopRef;
use self::poll_policy::PollPolicy;
use self::probe::Probe;
use self::process::OwnerProcess;
use self::ready::{NativeStep, ReadyQueue};
use self::run_state::{Phase, RunState};
pub(crate) use self::scratch::RECEIVE;
use self::scratch::Scratch;
use self::timers::Timers;
use self::wakeup::Wakeup;
use self::writes::Writes;
use super::handle::layout::Handle;
use crate::capi::error::Outcome;
use crate::capi::native::{Native, native_class};
use crate::capi::recycle::bytes_cache::BytesCache;
use crate::capi::section::{self, Held};
use crate::capi::threads::ident;
use crate::capi::{Borrowed, Exception, Fatal, Raised, Ref, Slot};
use crate::reactor::{Event, Poller, Readiness, Token};
use crate::spin::{Clock, Setting, SpinPolicy};

/// An entry of the ready queue.
pub(crate) type Entry = ready::Entry<Core>;

/// Sends what a transport has buffered.
pub(crate) type Flush = writes::Flush<Core>;

/// The offset of the core in its Python object. It is the same for every loop.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// The native state of a loop. It is a field of the Python object.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) ready: ReadyQueue<Core>,
    pub(crate) timers: Timers,
    pub(crate) clock: LoopClock,
    pub(crate) fds: FdTable<Core>,
    pub(crate) io: Io,
    pub(crate) polls: PollPolicy,
    pub(crate) spins: SpinPolicy,
    pub(crate) writes: Writes<Core>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) wakeup: Wakeup,
    pub(crate) gil: GilFairness,
    pub(crate) state: RunState,
    pub(crate) instrumentation: Instrumentation,
    pub(crate) probe: Probe,
    pub(crate) process: OwnerProcess,
    pub(crate) scratch: Scratch,
    /// `{"loop": loop}`, the keyword arguments for new futures.
    pub(crate) future_arguments: Slot,
    /// Reuses the bytes objects in which received data is delivered.
    pub(crate) bytes_cache: BytesCache,
    /// asyncio's `_thread_id` and `_task_factory`.
    pub(crate) thread_id: Slot,
    pub(crate) task_factory: Slot,
}

// The class is the pyo3 class that is passed to `init`. A core has the same offset in all its instances. Relaxed: the
// offset is stored once, at import.
native_class!(unsafe Core, offset OFFSET.load(Ordering::Relaxed));

/// The core of a loop object.
///
/// # Safety
/// `object` is a live instance of our loop class, and the result does not outlive it.
#[inline(always)]
pub(crate) unsafe fn core_of<'a>(object: *mut ffi::PyObject) -> &'a Core {
    // SAFETY: the caller's promise. Relaxed: the offset is stored once, at import.
    unsafe { &*object.cast::<u8>().add(OFFSET.load(Ordering::Relaxed)).cast::<Core>() }
}

/// Records the class of loops, and the offset of the core. Called once, by the module's initialisation.
///
/// # Safety
/// `core` is a field of `object`, with the same offset in every instance of its type.
pub(crate) unsafe fn init(object: &Bound<'_, PyAny>, core: &Core) {
    // Relaxed: before any loop can be used.
    OFFSET.store(std::ptr::from_ref(core) as usize - object.as_ptr() as usize, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { Core::class().set(&object.get_type()) };
}

impl LoopRef {
    /// The core, in a section of the loop. Debug builds check that.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn core(&self) -> &Core {
        let core = self.outside();
        debug_assert!(section::is_held(core.object()), "a loop is used outside of its critical section");
        core
    }

    /// As [`LoopRef::core`], for the parts of the core that any thread may use, such as its inbox.
    #[inline(always)]
    pub(crate) fn outside(&self) -> &Core {
        // SAFETY: an instance of our loop class, which lives as long as this reference to it.
        unsafe { core_of(self.object().as_ptr()) }
    }
}

impl Core {
    pub(crate) fn new() -> std_io::Result<Core> {
        let (poller, waker) = new_poller()?;
        let inbox = Arc::new(Inbox::new(waker));
        Ok(Core {
            ready: ReadyQueue::default(),
            timers: Timers::new(),
            clock: LoopClock::default(),
            fds: FdTable::new(),
            io: Io::new(poller),
            polls: PollPolicy::default(),
            // The constructor of the loop's class has refused a wrong value.
            spins: SpinPolicy::new(Setting::from_environment().unwrap_or_default(), Clock::Thread),
            writes: Writes::new(),
            wakeup: Wakeup::default(),
            gil: GilFairness::new(),
            state: RunState::default(),
            instrumentation: Instrumentation::default(),
            probe: Probe::new(&inbox),
            inbox,
            process: OwnerProcess::new(),
            scratch: Scratch::default(),
            future_arguments: Slot::empty(),
            bytes_cache: BytesCache::new(),
            thread_id: Slot::empty(),
            task_factory: Slot::empty(),
        })
    }

    /// The Python object of this core, as a borrowed reference.
    #[inline(always)]
    pub(crate) fn object(&self) -> *mut ffi::PyObject {
        // Relaxed: stored once, at import.
        std::ptr::from_ref(self).cast::<u8>().wrapping_sub(OFFSET.load(Ordering::Relaxed)).cast_mut().cast()
    }

    /// The Python object of this core, for as long as the core is borrowed.
    #[inline(always)]
    pub(crate) fn borrow(&self) -> Borrowed<'_> {
        // SAFETY: the object lives at least as long as this borrow of its field.
        unsafe { Borrowed::from_ptr(self.object()) }
    }

    /// An owned reference to the Python object.
    #[inline(always)]
    pub(crate) fn this(&self) -> Ref {
        self.borrow().to_owned()
    }

    /// An owned reference to the loop.
    #[inline(always)]
    pub(crate) fn loop_ref(&self) -> LoopRef {
        // SAFETY: a core is always a field of an instance of our loop class.
        unsafe { LoopRef::new(self.this()) }
    }

    /// Begins a critical section of the loop, for a function that CPython does not call by our own adapters.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Held {
        section::enter(&self.borrow())
    }

    // -- state

    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.instrumentation.is_closed()
    }

    /// Raises `RuntimeError` if the loop is closed.
    #[inline(always)]
    pub(crate) fn check_usable(&self) -> Result<(), Raised> {
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Is the native `run_forever` active, on any thread?
    #[inline(always)]
    pub(crate) fn is_running(&self) -> bool {
        self.state.phase() != Phase::Idle
    }

    /// Does the loop run in another thread? The answer is asyncio's: it looks at `_thread_id`.
    pub(crate) fn runs_in_another_thread(&self) -> bool {
        let running = self.thread_id.get().and_then(|thread| thread.exact_int());
        running.is_some_and(|running| running as u64 != ident())
    }

    /// Is a turn dispatching its events? Their callbacks run before the ready queue.
    #[inline(always)]
    pub(crate) fn is_dispatching(&self) -> bool {
        self.state.phase() == Phase::Dispatching
    }

    #[inline(always)]
    pub(crate) fn is_debug(&self) -> bool {
        self.instrumentation.is_debug()
    }

    /// Is this a forked child with its parent's loop?
    pub(crate) fn is_parents(&self) -> bool {
        self.process.is_parent()
    }

    // -- time

    /// The current time, on the clock of the timers.
    #[inline(always)]
    pub(crate) fn now(&self) -> Result<f64, Raised> {
        self.clock.now(&self.borrow())
    }

    #[inline(always)]
    pub(crate) fn custom_clock(&self) -> bool {
        self.clock.is_custom(&self.borrow())
    }

    /// Looks again for replacements of the clock and of `call_at`, and for patches of asyncio. Called when the loop is
    /// created, when it begins to run, and when a program sets `time` or `call_at` on it. Returns the class if some of
    /// its methods are now others.
    #[cold]
    pub(crate) fn look_for_patches(&self) -> Option<Ref> {
        self.instrumentation.look_for_patches();
        self.clock.look(&self.borrow());
        self.clock.take_changed()
    }

    /// Looks for patches between two runs, before a method schedules a callback. True if some methods of the loop's
    /// class are now others: then the caller is perhaps no longer the method that the program has called.
    #[inline(always)]
    pub(crate) fn is_changed_between_runs(&self) -> bool {
        self.instrumentation.is_between_runs() && self.clock.has_changed(&self.borrow())
    }

    // -- I/O

    /// The number of the turn.
    #[inline(always)]
    pub(crate) fn turn_number(&self) -> u64 {
        self.probe.counters.turns.get()
    }

    /// How long the turn has gone on at `now`, in nanoseconds.
    #[inline(always)]
    pub(crate) fn turn_length(&self, now: u64) -> u64 {
        self.probe.meter.elapsed(now)
    }

    /// How many events the polls have found.
    #[inline(always)]
    pub(crate) fn event_number(&self) -> u64 {
        self.probe.counters.io_events.get()
    }

    /// The number of the last poll.
    #[inline(always)]
    pub(crate) fn poll_number(&self) -> u64 {
        self.probe.counters.polls.get()
    }

    /// Lends the poller to register a descriptor, or to change or remove it: the next turn polls. `None` if the loop is
    /// closed, or if a thread is waiting in the poller ([`Core::is_polling`]).
    pub(crate) fn poller_to_change(&self) -> Option<std::cell::Ref<'_, Poller>> {
        self.note_io();
        self.io.poller()
    }

    /// Is a thread waiting in the poller without the GIL? Then no other thread may use the poller.
    #[inline(always)]
    pub(crate) fn is_polling(&self) -> bool {
        self.wakeup.polling.get()
    }

    /// Does a step of the loop go on, at whose end it sends what transports hold? Not between runs, and not while the
    /// loop waits in the poller.
    #[inline(always)]
    pub(crate) fn is_in_step(&self) -> bool {
        self.is_running() && !self.is_polling()
    }

    /// A descriptor was used. Another descriptor may be ready because of that, so the next turn polls.
    #[inline(always)]
    pub(crate) fn note_io(&self) {
        self.polls.note_io();
    }

    /// A receive on `fd` has returned `count`.
    #[inline(always)]
    pub(crate) fn note_received(&self, fd: RawFd, count: isize) {
        self.spins.note_bytes(count.max(0) as usize);
        self.probe.recorder.received(fd, count);
    }

    /// Calls the source of `token` in the next turn, as if the poller had reported it. So that turn polls: other
    /// sources may be ready too, and do not come later because of this one.
    pub(crate) fn requeue(&self, token: Token, readiness: Readiness) {
        self.polls.note_io();
        self.io.requeued.push(Event { token, readiness });
    }

    /// Closes the poller. The loop is closed, and no thread is waiting in the poller.
    pub(crate) fn drop_poller(&self) {
        self.io.set_poller(None);
        self.inbox.close();
    }

    // -- callbacks and wake-ups

    /// Queues a call of a native function with `object`.
    pub(crate) fn call_native(&self, object: Ref, run: NativeStep<Core>) {
        self.ready.push(Entry::Native { object, run });
        self.wake_if_parked();
    }

    /// Called after a push to the ready queue. Wakes the thread that waits in the poller, or the foreign main loop.
    #[inline(always)]
    pub(crate) fn wake_if_parked(&self) {
        if self.wakeup.polling.get() | self.wakeup.embedded.get() {
            self.inbox.wake();
        }
    }

    /// Has the loop nothing to do until the next event, message or timer?
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty()
            && !self.state.stopping.get()
            && self.io.requeued.is_empty()
            && self.writes.queue.is_empty()
            && self.io.events.is_empty()
    }

    /// The loop is embedded in a foreign main loop. From now on the poller's descriptor becomes readable between two
    /// turns whenever there is something to do.
    pub(crate) fn embed(&self) {
        self.wakeup.embedded.set(true);
        self.end_turns();
    }

    /// Called before one or several turns; [`Core::end_turns`] is called after them.
    #[inline(always)]
    pub(crate) fn begin_turns(&self) {
        if self.wakeup.embedded.get() {
            self.inbox.unpark();
        }
    }

    #[inline(always)]
    pub(crate) fn end_turns(&self) {
        if self.wakeup.embedded.get() && !self.is_polling() {
            self.inbox.park_embedded(!(self.io.requeued.is_empty() && self.io.events.is_empty()));
        }
    }

    /// This thread no longer waits in the poller. If the loop was closed in the meantime, this closes the poller.
    pub(crate) fn awake(&self) {
        self.wakeup.polling.set(false);
        self.inbox.unpark();
        if self.is_closed() {
            self.drop_poller();
        }
    }

    // -- writes

    /// Flushes `object` at the end of this step.
    #[inline(always)]
    pub(crate) fn flush_later(&self, object: Ref, flush: Flush) {
        self.writes.hold(object, flush);
    }

    /// `object` has sent what it held. Returns whether it is no longer in the queue: only the last one is taken out.
    #[inline(always)]
    pub(crate) fn holds_nothing(&self, object: Borrowed<'_>) -> bool {
        self.writes.queue.pop_last_if(|(queued, _)| queued.as_ptr() == object.as_ptr()).is_some()
    }

    /// A step has ended: a callback, a step of a task, or the handling of an event. Sends what it has held.
    #[inline(always)]
    pub(crate) fn end_step(&self) -> Result<(), Fatal> {
        if self.writes.end_step() { self.flush_all() } else { Ok(()) }
    }

    /// Sends everything that is held. Flushing may call Python (`resume_writing`, `connection_lost`), which may write
    /// again, so this repeats until nothing is left.
    #[inline(always)]
    pub(crate) fn flush_all(&self) -> Result<(), Fatal> {
        if self.writes.queue.is_empty() { Ok(()) } else { self.flush_queue() }
    }

    #[inline(never)]
    fn flush_queue(&self) -> Result<(), Fatal> {
        while !self.writes.queue.is_empty() {
            // After a fatal error the other transports are flushed too, so that no written data is held back.
            let mut outcome = Outcome::default();
            for _ in 0..self.writes.queue.len() {
                let Some((object, flush)) = self.writes.queue.pop() else { break };
                outcome.note(flush(&object, self));
            }
            outcome.finish()?;
        }
        Ok(())
    }

    /// A transport writes, which is in the queue if it is `queued`. As in asyncio, what another transport has written
    /// before is sent before.
    #[inline(always)]
    pub(crate) fn send_others(&self, queued: bool) -> Result<(), Fatal> {
        if queued { Ok(()) } else { self.flush_all() }
    }

    // -- garbage collection

    /// Visits every reference that the parts hold. `visit` runs no Python code.
    pub(crate) fn traverse(&self, visit: &mut dyn FnMut(&Ref)) {
        // The collector does not track most handles. If only the loop refers to such a handle, this visits the handle's
        // references too.
        let mut deep = |object: &Ref| {
            if let Some(handle) = Handle::for_collector(object)
                && object.is_unique()
                && !is_tracked(object)
            {
                handle.visit(visit);
            }
            visit(object);
        };
        self.ready.traverse(&mut deep);
        self.timers.traverse(&mut deep);
        self.fds.traverse(&mut deep);
        for slot in [&self.future_arguments, &self.thread_id, &self.task_factory] {
            // SAFETY: null, or an object that the slot keeps alive. The reference count stays: see `Slot::visit`.
            if let Some(object) = unsafe { Borrowed::from_nullable(slot.as_ptr()) } {
                deep(&object);
            }
        }
    }

    /// Drops everything that could refer back to the loop. Called by `close()` and by the garbage collector.
    pub(crate) fn clear(&self) {
        self.future_arguments.clear();
        self.bytes_cache.clear();
        self.probe.step_times.clear();
        self.clear_ready();
        while let Some(handle) = self.timers.pop() {
            handle.empty();
        }
        for fd in self.fds.descriptors() {
            if let Kind::Watched(watched) = self.fds.remove(fd) {
                watched.empty();
            }
        }
        drop(self.writes.queue.take());
        self.io.clear();
    }
}

impl Core {
    /// Drops the ready queue and empties its handles: the garbage collector does not see a cycle through a handle that
    /// the program keeps.
    pub(crate) fn clear_ready(&self) {
        while let Some(entry) = self.ready.pop() {
            if let Entry::Handle(handle) = &entry {
                handle.empty();
            }
        }
    }
}

/// The error of a call on a closed loop.
#[cold]
pub(crate) fn closed() -> Raised {
    Exception::RuntimeError.raise("Event loop is closed")
}

fn is_tracked(object: &Ref) -> bool {
    // SAFETY: a live object.
    unsafe { ffi::PyObject_GC_IsTracked(object.as_ptr()) != 0 }
}
