//! What a loop is made of.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi;

use super::chances::Chances;
use super::clock::{self, monotonic};
use super::futures::Futures;
use super::handle::Handle;
use super::inbox::Inbox;
use super::metrics::Counters;
use super::process::forks;
use super::ready::{Entry, NativeStep, ReadyQueue};
use super::source::FdTable;
use super::timers::Timers;
use super::tools::{self, Replaced};
use crate::capi::call::{call0, getattr};
use crate::capi::error::{Outcome, raise_message};
use crate::capi::imports::imports;
use crate::capi::spare_bytes::SpareBytes;
use crate::capi::{Fatal, Raised, Ref, Slot};
use crate::reactor::{Event, Poller, Readiness, Token, Waker};

/// How many events one poll hands out. Enough for a busy server's batch; more wait in the kernel.
const EVENTS: usize = 1024;
/// The loop-wide receive buffer. Small messages are copied out of it, so one is enough for all connections.
pub(crate) const RECEIVE: usize = 256 * 1024;
/// The room of a scratch vector: what a full receive decrypts to, with the rest of a record before it.
pub(crate) const SCRATCH: usize = RECEIVE + 32 * 1024;
/// How many scratch vectors a loop keeps: ciphertext and plaintext of what comes in, ciphertext of what goes out.
const SCRATCHES: usize = 3;
/// The waker's token: descriptor -1, a generation that no entry ever has.
pub(crate) const WAKER: Token = Token(usize::MAX - 1);

/// Where the core lies inside its Python object; the same for every loop.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// A transport that has something to send before the loop may block.
pub(crate) type Flush = fn(&Ref, &Core) -> Result<(), Fatal>;

/// The native state of a loop. Lives inside its Python object.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) ready: ReadyQueue,
    pub(crate) timers: Timers,
    pub(crate) fds: FdTable,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) counters: Counters,
    poller: UnsafeCell<Option<Poller>>,
    /// True while the loop thread is inside a blocking poll, without the GIL.
    pub(crate) polling: Cell<bool>,
    /// Another main loop was given the poller's descriptor, and waits for it between the turns of this one.
    outside: Cell<bool>,
    /// Either: what is pushed has to be told.
    awaited: Cell<bool>,
    /// Events of the last poll that are not dispatched yet.
    events: UnsafeCell<VecDeque<Event>>,
    /// Sources that want to be called again in the next turn although no edge will come.
    again: UnsafeCell<Vec<(Token, Readiness)>>,
    /// Descriptors whose registration another thread changed while the loop was parked.
    pub(crate) deferred: UnsafeCell<Vec<std::os::fd::RawFd>>,
    flush: UnsafeCell<Vec<(Ref, Flush)>>,
    /// The transport whose protocol is receiving data, borrowed from the call that it receives in: what the
    /// protocol writes to it is sent when it returns.
    delivering: Cell<Option<(*mut ffi::PyObject, Flush)>>,
    receive: UnsafeCell<Vec<u8>>,
    scratch: UnsafeCell<Vec<Vec<u8>>>,
    pub(crate) closed: Cell<bool>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) debug: Cell<bool>,
    pub(crate) replaced: Cell<Replaced>,
    /// Neither in debug mode nor under the eyes of a tool: callbacks and tasks need nothing of asyncio's.
    pub(crate) plain: Cell<bool>,
    /// The native run_forever is on some stack.
    pub(crate) running: Cell<bool>,
    /// A turn dispatches its events, whose callbacks run before what is queued: that is due timers, and what other
    /// events scheduled.
    pub(crate) dispatching: Cell<bool>,
    /// A descriptor was used since the last poll: what that set off (a connection to a listener of ours, say)
    /// may be waiting, so the next turn polls even if it is busy.
    pub(crate) touched: Cell<bool>,
    /// The socket that has just had several datagrams waiting, and probably has more by now: the next turn reads it
    /// again without asking the poller.
    pub(crate) busy: Cell<Option<Token>>,
    /// Until when polls are made in the knowledge that another thread keeps the GIL for long.
    pub(crate) wary: Cell<u64>,
    pub(crate) chances: Chances,
    /// `time` is overridden: the loop asks it instead of the clock. Through [`Core::custom_clock`].
    custom_time: Cell<bool>,
    /// So is `call_at`, and `call_later` goes through it. Through [`Core::custom_timing`].
    custom_call_at: Cell<bool>,
    /// The version of the loop's class when that was last looked at.
    class_version: Cell<std::ffi::c_uint>,
    /// How often Python's `time` module had been changed by then.
    clock_changes: Cell<u64>,
    pub(crate) thread_id: Slot,
    pub(crate) task_factory: Slot,
    pub(crate) futures: Futures,
    /// For the data of the next message.
    pub(crate) spare_bytes: SpareBytes,
    /// The process that it belongs to, in [`forks`].
    pub(super) forks: Cell<u32>,
    pub(super) inherited: Cell<Inherited>,
}

/// What a forked child gets that inherits the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inherited {
    /// Callbacks and timers.
    AtRest,
    /// It was in the middle of a run, which the child has left; or somebody watches its poller. The child cannot have it.
    InUse,
}

/// The core of a loop object.
///
/// # Safety
/// `object` is a live instance of our loop class, and the result does not outlive it.
#[inline(always)]
pub(crate) unsafe fn core_of<'a>(object: *mut ffi::PyObject) -> &'a Core {
    // SAFETY: the caller's word. Relaxed: the offset is stored once, at import.
    unsafe { &*object.cast::<u8>().add(OFFSET.load(Ordering::Relaxed)).cast::<Core>() }
}

/// Learns where the core lies in its object. Called once, by the module's initialisation.
pub(crate) fn learn_offset(object: *mut ffi::PyObject, core: &Core) {
    // Relaxed: before any loop can be used.
    OFFSET.store(std::ptr::from_ref(core) as usize - object as usize, Ordering::Relaxed);
}

/// A poller for a loop, and what wakes it.
pub(super) fn new_poller() -> io::Result<(Poller, Waker)> {
    let poller = Poller::with_capacity(EVENTS)?;
    let waker = poller.waker(WAKER)?;
    Ok((poller, waker))
}

impl Core {
    pub(crate) fn new() -> io::Result<Core> {
        let (poller, waker) = new_poller()?;
        Ok(Core {
            ready: ReadyQueue::new(),
            timers: Timers::new(),
            fds: FdTable::new(),
            inbox: Arc::new(Inbox::new(waker)),
            counters: Counters::default(),
            poller: UnsafeCell::new(Some(poller)),
            polling: Cell::new(false),
            outside: Cell::new(false),
            awaited: Cell::new(false),
            events: UnsafeCell::new(VecDeque::new()),
            again: UnsafeCell::new(Vec::new()),
            deferred: UnsafeCell::new(Vec::new()),
            flush: UnsafeCell::new(Vec::new()),
            delivering: Cell::new(None),
            receive: UnsafeCell::new(Vec::new()),
            scratch: UnsafeCell::new(Vec::new()),
            closed: Cell::new(false),
            stopping: Cell::new(false),
            debug: Cell::new(false),
            replaced: Cell::default(),
            plain: Cell::new(true),
            running: Cell::new(false),
            dispatching: Cell::new(false),
            touched: Cell::new(false),
            busy: Cell::new(None),
            wary: Cell::new(0),
            chances: Chances::new(),
            custom_time: Cell::new(false),
            custom_call_at: Cell::new(false),
            class_version: Cell::new(0),
            clock_changes: Cell::new(0),
            thread_id: Slot::empty(),
            task_factory: Slot::empty(),
            futures: Futures::new(),
            spare_bytes: SpareBytes::new(),
            forks: Cell::new(forks()),
            inherited: Cell::new(Inherited::AtRest),
        })
    }

    /// The Python object that this core lies in, borrowed.
    #[inline(always)]
    pub(crate) fn object(&self) -> *mut ffi::PyObject {
        // Relaxed: stored once, at import.
        std::ptr::from_ref(self).cast::<u8>().wrapping_sub(OFFSET.load(Ordering::Relaxed)).cast_mut().cast()
    }

    /// The Python object, owned.
    pub(crate) fn this(&self) -> Ref {
        // SAFETY: the object lives at least as long as this borrow of its inside.
        unsafe { Ref::from_borrowed(self.object()) }
    }

    /// `RuntimeError` for a loop that cannot be used: closed.
    #[inline(always)]
    pub(crate) fn check_usable(&self) -> Result<(), Raised> {
        if self.closed.get() { self.unusable() } else { Ok(()) }
    }

    #[cold]
    fn unusable(&self) -> Result<(), Raised> {
        // SAFETY: reading a static of the interpreter.
        raise_message(unsafe { ffi::PyExc_RuntimeError }, "Event loop is closed");
        Err(Raised)
    }

    /// The poller, while the loop is open. Must not be used while another thread is parked in it
    /// ([`Core::polling`]): such changes are deferred.
    pub(crate) fn poller(&self) -> Option<&Poller> {
        debug_assert!(!self.polling.get());
        self.touched.set(true);
        // SAFETY: GIL held, and nobody is inside the poll, the only place that borrows it mutably.
        unsafe { (*self.poller.get()).as_ref() }
    }

    /// The poller for the poll itself.
    #[allow(clippy::mut_from_ref, reason = "loop thread only; the turn is the only caller")]
    pub(crate) fn poller_mut(&self) -> Option<&mut Poller> {
        // SAFETY: only the turn calls this, on the loop thread, and `polling` keeps others out meanwhile.
        unsafe { (*self.poller.get()).as_mut() }
    }

    /// This thread sleeps no longer, and uses the poller no longer if it was the loop's end that woke it.
    pub(crate) fn awake(&self) {
        self.set_polling(false);
        self.inbox.unpark();
        if self.closed.get() {
            self.drop_poller();
        }
    }

    /// Another poller from now on. The loop is not running, and has nothing to watch.
    pub(super) fn replace_poller(&self, poller: Poller) {
        self.events().clear();
        // SAFETY: GIL held, the loop is not running.
        drop(unsafe { (*self.poller.get()).replace(poller) });
    }

    /// Gives up the poller; the loop is closing.
    pub(crate) fn drop_poller(&self) {
        // SAFETY: GIL held, the loop is not running.
        drop(unsafe { (*self.poller.get()).take() });
        self.inbox.close();
    }

    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; callers end the borrow before Python runs")]
    pub(crate) fn events(&self) -> &mut VecDeque<Event> {
        // SAFETY: see the reason above.
        unsafe { &mut *self.events.get() }
    }

    /// A descriptor was used: what that set off (a connection to a listener of this loop, say) may be ready, so the
    /// next turn polls.
    #[inline(always)]
    pub(crate) fn note_io(&self) {
        self.touched.set(true);
    }

    /// The next turn reads this datagram socket again without a poll: it had several datagrams waiting.
    pub(crate) fn reread(&self, token: Token) {
        self.busy.set(Some(token));
    }

    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The native `run_forever` is on some stack.
    #[inline(always)]
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// A turn dispatches its events, whose callbacks run before what is queued.
    #[inline(always)]
    pub(crate) fn is_dispatching(&self) -> bool {
        self.dispatching.get()
    }

    /// A thread sleeps in the poll without the GIL: the poller must not be used.
    #[inline(always)]
    pub(crate) fn is_polling(&self) -> bool {
        self.polling.get()
    }

    #[inline(always)]
    pub(crate) fn is_debug(&self) -> bool {
        self.debug.get()
    }

    /// Calls the source behind `token` in the next turn as if the poller had reported it.
    pub(crate) fn requeue(&self, token: Token, readiness: Readiness) {
        // SAFETY: GIL held, nothing runs inside.
        unsafe { (*self.again.get()).push((token, readiness)) }
    }

    #[inline(always)]
    pub(crate) fn take_again(&self) -> Option<Vec<(Token, Readiness)>> {
        // SAFETY: as in `requeue`.
        let again = unsafe { &mut *self.again.get() };
        if again.is_empty() { None } else { Some(std::mem::take(again)) }
    }

    pub(crate) fn has_again(&self) -> bool {
        // SAFETY: as in `requeue`.
        unsafe { !(*self.again.get()).is_empty() }
    }

    /// Has `object` flushed at the end of this turn.
    #[inline(always)]
    pub(crate) fn flush_later(&self, object: Ref, flush: Flush) {
        // SAFETY: GIL held, nothing runs inside.
        unsafe { (*self.flush.get()).push((object, flush)) }
    }

    /// Sends what this turn has written. Flushing may run Python code (resume_writing, a failed
    /// connection), which may write again: so until nothing is left.
    #[inline(always)]
    pub(crate) fn flush_all(&self) -> Result<(), Fatal> {
        loop {
            // SAFETY: GIL held; the list is moved out before anything runs.
            let list = unsafe { &mut *self.flush.get() };
            if list.is_empty() {
                return Ok(());
            }
            let mut batch = std::mem::take(list);
            // The rest is flushed even if one of them hits a fatal error: nothing written is held.
            let mut outcome = Outcome::default();
            for (object, flush) in batch.drain(..) {
                outcome.note(flush(&object, self));
            }
            // SAFETY: as above. The empty vector goes back, so that a busy loop does not allocate.
            let list = unsafe { &mut *self.flush.get() };
            if list.is_empty() {
                *list = batch;
            }
            outcome.finish()?;
        }
    }

    /// `object` hands data to its protocol. What is returned is for [`Core::end_delivery`].
    #[inline(always)]
    pub(crate) fn begin_delivery(&self, object: &Ref, flush: Flush) -> Option<(*mut ffi::PyObject, Flush)> {
        self.delivering.replace(Some((object.as_ptr(), flush)))
    }

    #[inline(always)]
    pub(crate) fn end_delivery(&self, outer: Option<(*mut ffi::PyObject, Flush)>) {
        self.delivering.set(outer);
    }

    #[inline(always)]
    pub(crate) fn is_delivering(&self, object: &Ref) -> bool {
        self.delivering.get().is_some_and(|(delivering, _)| delivering == object.as_ptr())
    }

    /// The loop is run inside of a protocol's call: what that has written so far does not wait for its end.
    pub(crate) fn nested(&self) {
        if let Some((object, flush)) = self.delivering.take() {
            // SAFETY: the call that lent it is still on the stack.
            self.flush_later(unsafe { Ref::from_borrowed(object) }, flush);
        }
    }

    pub(crate) fn has_flush(&self) -> bool {
        // SAFETY: as in `flush_all`.
        unsafe { !(*self.flush.get()).is_empty() }
    }

    /// The loop-wide receive buffer. The caller copies out of it before anything else can run.
    #[allow(clippy::mut_from_ref, reason = "loop thread only; the content is copied before Python runs")]
    pub(crate) fn receive_buffer(&self) -> &mut [u8] {
        // SAFETY: see the reason above.
        let buffer = unsafe { &mut *self.receive.get() };
        if buffer.is_empty() {
            *buffer = vec![0; RECEIVE];
        }
        buffer
    }

    /// An empty vector with room for at least [`SCRATCH`] bytes, the caller's until it gives it back: unlike the
    /// receive buffer it may be held while Python runs.
    pub(crate) fn take_scratch(&self) -> Vec<u8> {
        // SAFETY: GIL held, nothing runs inside.
        unsafe { (*self.scratch.get()).pop() }.unwrap_or_else(|| Vec::with_capacity(SCRATCH))
    }

    /// Gives a vector from [`Core::take_scratch`] back. One that is not given back is freed like any other.
    pub(crate) fn return_scratch(&self, mut vector: Vec<u8>) {
        vector.clear();
        // SAFETY: as in `take_scratch`.
        let kept = unsafe { &mut *self.scratch.get() };
        if kept.len() < SCRATCHES && (SCRATCH..=2 * SCRATCH).contains(&vector.capacity()) {
            kept.push(vector);
        }
    }

    /// Queues a native object's step.
    pub(crate) fn call_native(&self, object: Ref, run: NativeStep) {
        self.ready.push(Entry::Native { object, run });
        self.wake_if_parked();
    }

    pub(crate) fn set_polling(&self, polling: bool) {
        self.polling.set(polling);
        self.awaited.set(polling || self.outside.get());
    }

    /// From now on the poller's descriptor is readable between the turns when there is something to do.
    pub(super) fn be_watched(&self) {
        self.outside.set(true);
        self.awaited.set(true);
        self.rest();
    }

    /// One turn or several begin; [`Core::rest`] follows them.
    #[inline(always)]
    pub(super) fn begin_turns(&self) {
        if self.outside.get() {
            self.inbox.unpark();
        }
    }

    /// It is over.
    #[inline(always)]
    pub(super) fn rest(&self) {
        if self.outside.get() && !self.polling.get() {
            self.inbox.rest(self.has_again() || !self.events().is_empty());
        }
    }

    /// After a push by another thread: wakes the loop if it sleeps in the poll, or who waits for its descriptor.
    #[inline(always)]
    pub(crate) fn wake_if_parked(&self) {
        if self.awaited.get() {
            self.inbox.wake();
        }
    }

    /// Now, on the clock that timers are set by.
    #[inline(always)]
    pub(crate) fn now(&self) -> Result<f64, Raised> {
        if self.custom_clock() { self.custom_now() } else { Ok(monotonic()) }
    }

    /// Whether somebody has put another clock in the place of ours, as test clocks do: on the loop, on its
    /// class, or by replacing `time.monotonic`. CPython gives a class that is changed another version.
    #[inline(always)]
    pub(crate) fn custom_clock(&self) -> bool {
        self.keep_timing();
        self.custom_time.get()
    }

    /// The clock, or `call_at`.
    #[inline(always)]
    pub(crate) fn custom_timing(&self) -> bool {
        self.keep_timing();
        self.custom_time.get() | self.custom_call_at.get()
    }

    pub(crate) fn custom_call_at(&self) -> bool {
        self.custom_call_at.get()
    }

    #[inline(always)]
    fn keep_timing(&self) {
        // SAFETY: a live object.
        let version = unsafe { (*ffi::Py_TYPE(self.object())).tp_version_tag };
        if version != self.class_version.get() || clock::changes() != self.clock_changes.get() {
            self.note_clock();
        }
    }

    /// Looks anew for those who stand in asyncio's place.
    #[cold]
    pub(crate) fn note_tools(&self) {
        self.replaced.set(tools::look());
        self.note_plain();
    }

    fn note_plain(&self) {
        let Replaced { handle_run, create_task } = self.replaced.get();
        self.plain.set(!(self.debug.get() || handle_run || create_task));
    }

    pub(crate) fn set_debug(&self, on: bool) {
        self.debug.set(on);
        self.note_plain();
    }

    /// Looks at clock and `call_at` anew, and for tools: the loop begins to run, or its class was changed.
    #[cold]
    pub(crate) fn note_clock(&self) {
        self.note_tools();
        let object = self.this();
        // Before the look: what is changed meanwhile is looked at again.
        self.clock_changes.set(clock::changes());
        let (custom_time, custom_call_at) = clock::custom_timing(&object).unwrap_or_else(|raised| {
            drop(raised.take());
            (false, false)
        });
        // The look itself gave the class a version, if it had none. A failure is the user's own `__getattr__`.
        // SAFETY: a live object.
        self.class_version.set(unsafe { (*ffi::Py_TYPE(object.as_ptr())).tp_version_tag });
        self.custom_time.set(custom_time);
        self.custom_call_at.set(custom_call_at);
    }

    /// What that clock says, as it says it.
    #[cold]
    pub(crate) fn custom_time(&self) -> Result<Ref, Raised> {
        call0(&getattr(self.object(), imports().time.as_ptr())?)
    }

    #[cold]
    fn custom_now(&self) -> Result<f64, Raised> {
        let now = self.custom_time()?;
        // SAFETY: a live object; -1 with an error set means failure.
        let value = unsafe { ffi::PyFloat_AsDouble(now.as_ptr()) };
        // SAFETY: asks for the indicator only.
        if value == -1.0 && !unsafe { ffi::PyErr_Occurred() }.is_null() { Err(Raised) } else { Ok(value) }
    }

    /// Takes a listener away from its descriptor, which the caller is about to close or to let rest.
    pub(crate) fn remove_listener(&self, fd: std::os::fd::RawFd) -> bool {
        if !self.fds.is_listener(fd) {
            return false;
        }
        let listener = self.fds.remove(fd);
        if let Some(poller) = self.poller().filter(|_| !self.is_parents()) {
            // A descriptor that is closed already has left the poller by itself.
            let _ = poller.deregister(fd);
        }
        drop(listener);
        true
    }

    /// Takes a source away from its descriptor. `closing`: which the caller is about to close, so that it leaves the
    /// poller by itself.
    pub(crate) fn remove_source(&self, fd: std::os::fd::RawFd, closing: bool) {
        let source = self.fds.remove(fd);
        if !closing && !self.is_parents() {
            if self.polling.get() {
                // SAFETY: GIL held, nothing runs inside.
                unsafe { (*self.deferred.get()).push(fd) };
                self.inbox.wake();
            } else if let Some(poller) = self.poller() {
                // It is registered, and if it is not, all the better.
                let _ = poller.deregister(fd);
            }
        }
        drop(source);
    }

    /// # Safety
    /// Called by the collector; `visit` runs no Python code.
    pub(crate) unsafe fn traverse(&self, visit: &mut dyn FnMut(*mut ffi::PyObject) -> i32) -> i32 {
        let mut deep = |object: *mut ffi::PyObject| {
            // SAFETY: a live object that one of our queues owns. A handle that is not tracked by the collector
            // has its inside entered from here, but only if nobody else could still reach it.
            unsafe {
                if super::handle::is_handle(object)
                    && ffi::Py_REFCNT(object) == 1
                    && ffi::PyObject_GC_IsTracked(object) == 0
                {
                    let result = Handle::of(object).visit(visit);
                    if result != 0 {
                        return result;
                    }
                }
                visit(object)
            }
        };
        // SAFETY: the caller's word.
        unsafe {
            for result in [
                self.ready.traverse(&mut deep),
                self.timers.traverse(&mut deep),
                self.fds.traverse(&mut deep),
                self.futures.traverse(&mut deep),
            ] {
                if result != 0 {
                    return result;
                }
            }
            for slot in [&self.thread_id, &self.task_factory] {
                if !slot.is_empty() {
                    let result = deep(slot.as_ptr());
                    if result != 0 {
                        return result;
                    }
                }
            }
        }
        0
    }

    /// Lets everything go that could hold a reference back to the loop, as `close()` and the collector do.
    pub(crate) fn clear(&self) {
        self.futures.clear();
        self.spare_bytes.clear();
        while let Some(entry) = self.ready.pop() {
            if let super::ready::Entry::Handle(handle) = &entry {
                super::handle::empty(handle);
            }
        }
        while let Some(handle) = self.timers.pop() {
            super::handle::empty(&handle);
        }
        for fd in self.fds.descriptors() {
            let kind = self.fds.remove(fd);
            if let super::source::Kind::Watch(watch) = &kind {
                watch.empty();
            }
        }
        // SAFETY: GIL held; each list is moved out before its content is dropped.
        unsafe {
            drop(std::mem::take(&mut *self.flush.get()));
            drop(std::mem::take(&mut *self.events.get()));
            drop(std::mem::take(&mut *self.again.get()));
        }
    }
}
