//! The fields of a handle, and how handles are created, emptied and traversed.
//!
//! Handles are heap types of the C API that the garbage collector does not track: a tracked Handle costs 263
//! instructions more per callback, a pyclass 490. A cycle through a Handle is broken when it runs or is cancelled,
//! because both empty it. The loop's own traverse visits the references of the handles that only the loop owns. A
//! TimerHandle that other code holds too, such as `asyncio.sleep` and `asyncio.timeout`, is tracked when the loop stops
//! running, because only then can the loop itself be part of the cycle. One that is made while the loop does not run is
//! tracked from the beginning, if the loop has few timers (`MOST_TRACKED` in `calls.rs`).
//!
//! The callback and up to three arguments are stored inline. More arguments are stored as a tuple.
//!
//! `isinstance(handle, asyncio.Handle)` is true because `__class__` returns asyncio's class. Inheriting from that class
//! would cost as much as this layout saves.

use std::cell::Cell;

use super::super::core::loop_ref::{LoopRef, LoopSlot};
use super::run_lock::RunLock;
use crate::capi::fallible::tuple;
use crate::capi::inspect::float;
use crate::capi::native::{self, Native, This, WeakList, native_class};
use crate::capi::recycle::context::as_object;
use crate::capi::{Borrowed, Raised, Ref, Slot};
use crate::timer;

/// How many arguments are stored inline.
pub(super) const INLINE: usize = 3;

/// What a handle is for. `Handle::run` treats the last two kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum HandleKind {
    /// Made by `call_soon`: runs once.
    Once,
    /// A [`TimerHandle`].
    Timer,
    /// Made by `add_reader` or `add_writer`: runs any number of times.
    Repeated,
    /// A [`ThreadSafeHandle`].
    ThreadSafe,
}

/// A scheduled callback.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Handle {
    pub(super) callback: Slot,
    /// The arguments, from the first slot on. If `tupled` is set, the first slot has the tuple of all arguments.
    pub(super) arguments: [Slot; INLINE],
    pub(super) tupled: Cell<bool>,
    pub(super) cancelled: Cell<bool>,
    pub(super) kind: HandleKind,
    /// The result of `capi::recycle::context::context_for`: a Context object, or only its variables until Python code
    /// asks for the object.
    pub(super) context: Slot,
    pub(super) event_loop: LoopSlot,
    pub(super) source_traceback: Slot,
    /// The repr from before the callback was dropped: of a handle that was cancelled in debug mode, or whose error was
    /// reported.
    pub(super) repr: Slot,
    pub(super) weaklist: WeakList,
}

/// A scheduled callback with a deadline. It knows its slot in the timer heap.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct TimerHandle {
    pub(super) handle: Handle,
    pub(super) when: Cell<f64>,
    pub(super) slot: Cell<timer::Slot>,
    /// The deadline object, if it was not a float: like asyncio, `when()` returns the object that was passed.
    pub(super) given: Slot,
}

/// A Handle that other threads may cancel.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ThreadSafeHandle {
    pub(super) handle: Handle,
    pub(super) lock: RunLock,
}

// `make_types` builds the classes, which have no subclasses. Only `native::create` makes instances. The freelist has
// room for 256 handles; a larger burst uses malloc. Nothing replaces the reference to the loop, which guards the fields.
native_class!(unsafe Handle, freelist 256, collected false, guard |it| it.event_loop.slot().as_ptr());
native_class!(unsafe TimerHandle, freelist 256, guard |it| it.handle.event_loop.slot().as_ptr());
native_class!(
    unsafe ThreadSafeHandle, freelist 256, collected false, guard |it| it.handle.event_loop.slot().as_ptr()
);

/// Is the object a native handle, of any kind?
#[inline(always)]
pub(crate) fn is_handle(object: &Ref) -> bool {
    let classes = [Handle::class(), TimerHandle::class(), ThreadSafeHandle::class()];
    classes.iter().any(|class| class.is_exact_class_of(object))
}

/// A reference to a native handle, of any kind.
#[derive(Debug)]
pub(crate) struct HandleRef(Ref);

impl HandleRef {
    /// Returns the object as the error if it is not a native handle.
    #[inline(always)]
    pub(crate) fn new(object: Ref) -> Result<HandleRef, Ref> {
        if is_handle(&object) { Ok(HandleRef(object)) } else { Err(object) }
    }

    #[inline(always)]
    pub(crate) fn object(&self) -> &Ref {
        &self.0
    }

    #[inline(always)]
    pub(crate) fn into_object(self) -> Ref {
        self.0
    }

    #[inline(always)]
    pub(crate) fn clone_ref(&self) -> HandleRef {
        HandleRef(self.0.clone_ref())
    }
}

impl std::ops::Deref for HandleRef {
    type Target = Handle;

    #[inline(always)]
    fn deref(&self) -> &Handle {
        // SAFETY: the constructors in this file accept only handles. The reference keeps the handle alive.
        unsafe { Handle::of(&self.0) }
    }
}

/// A reference to a TimerHandle. The timer heap owns these.
#[derive(Debug)]
pub(crate) struct TimerRef(HandleRef);

impl TimerRef {
    #[inline(always)]
    pub(crate) fn handle(&self) -> &HandleRef {
        &self.0
    }

    #[inline(always)]
    pub(crate) fn into_handle(self) -> HandleRef {
        self.0
    }

    #[inline(always)]
    pub(crate) fn clone_ref(&self) -> TimerRef {
        TimerRef(self.0.clone_ref())
    }

    #[inline(always)]
    fn timer(&self) -> This<'_, TimerHandle> {
        // SAFETY: only `TimerHandle::create` makes these references. The reference keeps the handle alive.
        unsafe { This::from_ptr(self.0.object().as_ptr()) }
    }

    /// Has the garbage collector track the handle, if there is another reference besides the heap's.
    pub(crate) fn track_shared(&self) {
        if !self.0.object().is_unique() {
            self.timer().track();
        }
    }
}

impl timer::Slotted for TimerRef {
    #[inline(always)]
    fn set_slot(&self, slot: timer::Slot) {
        self.timer().slot.set(slot);
    }
}

/// When a timer is due.
pub(crate) struct Deadline {
    /// The key of the timer heap.
    pub(crate) seconds: f64,
    /// The object that was passed, unless it was a float.
    pub(crate) given: Option<Ref>,
}

/// The parts of a new handle.
pub(crate) struct Parts<'a> {
    pub(crate) event_loop: LoopRef,
    pub(crate) callback: Ref,
    pub(crate) arguments: &'a [Borrowed<'a>],
    pub(crate) context: Ref,
}

impl Parts<'_> {
    #[inline(always)]
    fn into_handle(self, kind: HandleKind) -> Result<Handle, Raised> {
        let tupled = self.arguments.len() > INLINE;
        let arguments = if tupled {
            [Slot::new(Some(tuple_of(self.arguments)?)), Slot::empty(), Slot::empty()]
        } else {
            std::array::from_fn(|index| Slot::new(self.arguments.get(index).map(|it| it.clone_ref())))
        };
        Ok(Handle {
            callback: Slot::new(Some(self.callback)),
            arguments,
            tupled: Cell::new(tupled),
            cancelled: Cell::new(false),
            kind,
            context: Slot::new(Some(self.context)),
            event_loop: LoopSlot::new(self.event_loop),
            source_traceback: Slot::empty(),
            repr: Slot::empty(),
            weaklist: WeakList::new(),
        })
    }
}

#[cold]
fn tuple_of(arguments: &[Borrowed<'_>]) -> Result<Ref, Raised> {
    tuple(arguments.iter().map(|argument| argument.clone_ref()))
}

impl Handle {
    /// Creates a Handle that runs once. The caller queues it.
    #[inline(always)]
    pub(crate) fn create(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        native::create(parts.into_handle(HandleKind::Once)?).map(HandleRef)
    }

    /// Creates a Handle that may run any number of times, for `add_reader` and `add_writer`.
    pub(crate) fn create_repeated(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        native::create(parts.into_handle(HandleKind::Repeated)?).map(HandleRef)
    }

    /// # Safety
    /// `object` is one of our handles ([`is_handle`]).
    #[inline(always)]
    unsafe fn of(object: &Ref) -> &Handle {
        // SAFETY: the caller's promise. All three types begin with a `Handle`, at the same offset.
        unsafe { This::<Handle>::from_ptr(object.as_ptr()) }.fields()
    }

    /// The object, if it is one of our handles, for the collector: all other threads stand still, so no section is held.
    pub(crate) fn for_collector(object: &Ref) -> Option<&Handle> {
        // SAFETY: the type is tested first. All three types begin with a `Handle`, at the same offset.
        is_handle(object).then(|| unsafe { This::<Handle>::outside(object.as_ptr()) }.fields())
    }

    /// The object, if it is one of our handles.
    #[inline(always)]
    pub(crate) fn from_object(object: &Ref) -> Option<&Handle> {
        // SAFETY: the type is tested first.
        is_handle(object).then(|| unsafe { Handle::of(object) })
    }

    /// The lock of a ThreadSafeHandle.
    #[inline(always)]
    pub(super) fn lock(&self) -> Option<&RunLock> {
        // SAFETY: only `ThreadSafeHandle::create` makes handles of this kind, and a ThreadSafeHandle begins with its
        // `Handle`.
        (self.kind == HandleKind::ThreadSafe)
            .then(|| unsafe { &(*std::ptr::from_ref(self).cast::<ThreadSafeHandle>()).lock })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// The callback, unless it has run or was cancelled.
    pub(crate) fn callback(&self) -> Option<Ref> {
        self.callback.get()
    }

    /// The context as `capi::recycle::context` has it; `None` once the callback has run.
    pub(crate) fn context_to_run(&self) -> Option<Ref> {
        self.context.get()
    }

    /// The same. It is valid until other code runs.
    #[inline(always)]
    pub(crate) fn borrowed_callback(&self) -> Option<Borrowed<'_>> {
        // SAFETY: null, or an object to which the handle has a reference.
        unsafe { Borrowed::from_nullable(self.callback.as_ptr()) }
    }

    pub(crate) fn set_source_traceback(&self, traceback: Option<Ref>) {
        self.source_traceback.set(traceback);
    }

    /// Moves the arguments out. The unused slots are the last ones.
    #[inline(always)]
    pub(super) fn take_arguments(&self) -> [Option<Ref>; INLINE] {
        self.arguments.each_ref().map(Slot::take)
    }

    /// Does the handle have no references to objects that could be deallocated with it? So it is after a run or a
    /// cancel.
    #[inline(always)]
    pub(super) fn is_emptied(&self) -> bool {
        self.callback.is_empty() && self.context.is_empty() && self.source_traceback.is_empty()
    }

    /// Replaces the arguments, by a tuple or by none. Tracers that wrap the callback do that.
    pub(super) fn set_arguments(&self, tuple: Option<Ref>) {
        let old = self.take_arguments();
        if tuple.is_some() {
            self.tupled.set(true);
        }
        self.arguments[0].set(tuple);
        drop(old);
    }

    /// Cancels the handle. The callback will not run, and the handle drops its references. That includes the context:
    /// the collector does not track the handle, and a context variable may refer to an object that holds the handle.
    pub(crate) fn cancel(&self) {
        self.cancelled.set(true);
        self.empty();
    }

    /// Drops the callback, the arguments and the context.
    pub(crate) fn empty(&self) {
        // All of them are moved out first, before a destructor can run.
        drop((self.callback.take(), self.take_arguments()));
        self.context.clear();
    }

    /// Empties the handle after a run that has left its callback in place, unless it may run again.
    pub(crate) fn finish_run(&self) {
        if self.kind != HandleKind::Repeated || self.is_cancelled() {
            self.empty();
        }
    }

    /// The Context in which the callback runs, as a Python object. The handle keeps this object from now on.
    pub(super) fn context_object(&self) -> Result<Option<Ref>, Raised> {
        let Some(context) = self.context.get() else { return Ok(None) };
        let object = as_object(context)?;
        self.context.set(Some(object.clone_ref()));
        Ok(Some(object))
    }

    /// The arguments as a tuple; `None` once they were dropped.
    pub(super) fn arguments_tuple(&self) -> Result<Option<Ref>, Raised> {
        if self.callback.is_empty() {
            return Ok(None);
        }
        let arguments = self.arguments.each_ref().map(Slot::get);
        match arguments {
            [Some(tuple), ..] if self.tupled.get() => Ok(Some(tuple)),
            arguments => tuple(arguments.into_iter().flatten().collect::<Vec<_>>()).map(Some),
        }
    }

    /// Visits the handle's references, for a TimerHandle's own traverse and for the loop's.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Ref)) {
        let slots = [&self.callback, &self.context, self.event_loop.slot()];
        for slot in slots.into_iter().chain(&self.arguments) {
            // SAFETY: null, or an object to which the handle has a reference.
            if let Some(object) = unsafe { Borrowed::from_nullable(slot.as_ptr()) } {
                visit(&object);
            }
        }
    }
}

impl TimerHandle {
    /// Creates a TimerHandle. The caller adds it to the heap.
    #[inline(always)]
    pub(crate) fn create(when: Deadline, parts: Parts<'_>) -> Result<TimerRef, Raised> {
        native::create(TimerHandle {
            handle: parts.into_handle(HandleKind::Timer)?,
            when: Cell::new(when.seconds),
            slot: Cell::new(timer::Slot::NONE),
            given: Slot::new(when.given),
        })
        .map(|timer| TimerRef(HandleRef(timer)))
    }

    /// The deadline as a Python number.
    pub(super) fn when_object(&self) -> Result<Ref, Raised> {
        self.given.get().map_or_else(|| float(self.when.get()), Ok)
    }
}

impl ThreadSafeHandle {
    /// Creates a ThreadSafeHandle. The caller queues it.
    #[inline(always)]
    pub(crate) fn create(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        native::create(ThreadSafeHandle {
            handle: parts.into_handle(HandleKind::ThreadSafe)?,
            lock: RunLock::new(),
        })
        .map(HandleRef)
    }
}
