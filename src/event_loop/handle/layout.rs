//! What a handle is: its fields, how it is made, emptied and shown to the collector.
//!
//! Handles are raw heap types that the collector does not track: a tracked Handle costs 263 instructions more per
//! callback, a pyclass 490. A cycle through a Handle is broken when it runs or is cancelled, because both empty it; the
//! loop's own traverse enters the handles that only the loop owns. A TimerHandle that other code holds as well, as
//! `asyncio.sleep` and `asyncio.timeout` do, is tracked when the loop stops running: only then can the loop itself be a
//! part of the cycle.
//!
//! The callback and up to three arguments lie inline. More arguments are kept as a tuple.
//!
//! `isinstance(handle, asyncio.Handle)` holds through `__class__`, as for a proxy: to inherit would cost what the plain
//! layout saves.

use std::cell::Cell;

use super::super::core::loop_ref::{LoopRef, LoopSlot};
use super::run_lock::RunLock;
use crate::capi::fallible::tuple;
use crate::capi::inspect::float;
use crate::capi::native::{self, Native, This, WeakList, native_class};
use crate::capi::recycle::context::as_object;
use crate::capi::{Borrowed, Raised, Ref, Slot};
use crate::timer;

/// How many arguments lie inline.
pub(super) const INLINE: usize = 3;

/// What a handle is for. `Handle::run` takes another way for the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Kind {
    /// Made by `call_soon`: runs once.
    Once,
    /// A [`TimerHandle`].
    Timer,
    /// Kept by `add_reader` and `add_writer`: runs more than once.
    Repeated,
    /// A [`ThreadSafeHandle`].
    ThreadSafe,
}

/// A scheduled callback.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Handle {
    pub(super) callback: Slot,
    /// The first places are filled. A handle that is `tupled` has the tuple of all arguments in the first.
    pub(super) arguments: [Slot; INLINE],
    pub(super) tupled: Cell<bool>,
    pub(super) cancelled: Cell<bool>,
    pub(super) kind: Kind,
    /// What `capi::recycle::context::context_for` gave: a Context, or bare variables until Python code asks for it.
    pub(super) context: Slot,
    pub(super) event_loop: LoopSlot,
    pub(super) source_traceback: Slot,
    /// The repr from before a cancel in debug mode, when the callback is already gone.
    pub(super) shown: Slot,
    pub(super) weaklist: WeakList,
}

/// A scheduled callback with a deadline, which knows its place in the timer heap.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct TimerHandle {
    pub(super) handle: Handle,
    pub(super) when: Cell<f64>,
    pub(super) slot: Cell<timer::Slot>,
    /// The deadline as it was given, if that was no float: asyncio keeps and shows the very object.
    pub(super) given: Slot,
}

/// A Handle that other threads may cancel.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ThreadSafeHandle {
    pub(super) handle: Handle,
    pub(super) lock: RunLock,
}

// `make_types` builds the classes, from which none is derived; `native::create` makes every instance. A burst of more than
// 256 handles falls back to malloc.
native_class!(unsafe Handle, freelist 256, collected false);
native_class!(unsafe TimerHandle, freelist 256);
native_class!(unsafe ThreadSafeHandle, freelist 256, collected false);

/// Is it one of ours (of any kind)?
#[inline(always)]
pub(crate) fn is_handle(object: &Ref) -> bool {
    let classes = [Handle::class(), TimerHandle::class(), ThreadSafeHandle::class()];
    classes.iter().any(|class| class.is_exact_class_of(object))
}

/// A reference to a handle of ours, of any kind.
#[derive(Debug)]
pub(crate) struct HandleRef(Ref);

impl HandleRef {
    /// Gives the object back if it is none of ours.
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
        // SAFETY: the constructors in this file take handles only; the reference keeps it alive.
        unsafe { Handle::of(&self.0) }
    }
}

/// A reference to a TimerHandle: what the timer heap owns.
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
        // SAFETY: `TimerHandle::create` alone makes these; the reference keeps the handle alive.
        unsafe { This::from_ptr(self.0.object().as_ptr()) }
    }

    /// Shows the handle to the collector if it is referred to by more than the heap.
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
    /// What timers are ordered by.
    pub(crate) seconds: f64,
    /// What was given, unless it was a float.
    pub(crate) given: Option<Ref>,
}

/// What a new handle is made of.
pub(crate) struct Parts<'a> {
    pub(crate) event_loop: LoopRef,
    pub(crate) callback: Ref,
    pub(crate) arguments: &'a [Borrowed<'a>],
    pub(crate) context: Ref,
}

impl Parts<'_> {
    #[inline(always)]
    fn into_handle(self, kind: Kind) -> Result<Handle, Raised> {
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
            shown: Slot::empty(),
            weaklist: WeakList::new(),
        })
    }
}

#[cold]
fn tuple_of(arguments: &[Borrowed<'_>]) -> Result<Ref, Raised> {
    tuple(arguments.iter().map(|argument| argument.clone_ref()))
}

impl Handle {
    /// A new Handle that runs once. It is not queued.
    #[inline(always)]
    pub(crate) fn create(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        native::create(parts.into_handle(Kind::Once)?).map(HandleRef)
    }

    /// A new Handle that runs as often as it is asked to. It is not watched yet.
    pub(crate) fn create_repeated(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        native::create(parts.into_handle(Kind::Repeated)?).map(HandleRef)
    }

    /// # Safety
    /// `object` is one of our handles ([`is_handle`]).
    #[inline(always)]
    unsafe fn of(object: &Ref) -> &Handle {
        // SAFETY: the caller's word. All three types begin with these fields, at the same place.
        unsafe { This::<Handle>::from_ptr(object.as_ptr()) }.fields()
    }

    /// The object, if it is one of our handles.
    #[inline(always)]
    pub(crate) fn from_object(object: &Ref) -> Option<&Handle> {
        // SAFETY: just tested.
        is_handle(object).then(|| unsafe { Handle::of(object) })
    }

    /// The lock of a ThreadSafeHandle.
    #[inline(always)]
    pub(super) fn lock(&self) -> Option<&RunLock> {
        // SAFETY: handles of this kind are made by `ThreadSafeHandle::create` only, and begin with a `Handle`.
        (self.kind == Kind::ThreadSafe)
            .then(|| unsafe { &(*std::ptr::from_ref(self).cast::<ThreadSafeHandle>()).lock })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub(crate) fn set_source_traceback(&self, traceback: Option<Ref>) {
        self.source_traceback.set(traceback);
    }

    /// Moves the arguments out: the filled ones come first.
    #[inline(always)]
    pub(super) fn take_arguments(&self) -> [Option<Ref>; INLINE] {
        self.arguments.each_ref().map(Slot::take)
    }

    /// A handle that has run, or was cancelled, holds nothing that its end could free.
    #[inline(always)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.callback.is_empty() && self.context.is_empty() && self.source_traceback.is_empty()
    }

    /// What a tracer does that wraps the callback in one of its own: the arguments as one tuple, or none.
    pub(super) fn set_arguments(&self, tuple: Option<Ref>) {
        let old = self.take_arguments();
        if tuple.is_some() {
            self.tupled.set(true);
        }
        self.arguments[0].set(tuple);
        drop(old);
    }

    /// Cancels: the callback will not run, and the handle drops what it holds. The context too: the collector does not
    /// see the handle, and a context variable may lead back to an object that holds it.
    pub(crate) fn cancel(&self) {
        self.cancelled.set(true);
        self.empty();
    }

    /// Drops what a run would need.
    pub(crate) fn empty(&self) {
        // Everything is taken out before any destructor runs.
        drop((self.callback.take(), self.take_arguments()));
        self.context.clear();
    }

    /// After a run that kept what the handle holds: empties it, unless it runs again.
    pub(crate) fn spent(&self) {
        if self.kind != Kind::Repeated || self.is_cancelled() {
            self.empty();
        }
    }

    /// The Context in which the callback runs, as an object that Python may see. The handle keeps that object.
    pub(super) fn context_object(&self) -> Result<Option<Ref>, Raised> {
        let Some(context) = self.context.get() else { return Ok(None) };
        let object = as_object(context)?;
        self.context.set(Some(object.clone_ref()));
        Ok(Some(object))
    }

    /// The arguments as Python shows them: a tuple, or `None` once they are gone.
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

    /// Shows the collector the handle's own references: for its own traverse, and for the loop's while it has none.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Ref)) {
        let slots = [&self.callback, &self.context, self.event_loop.slot()];
        for slot in slots.into_iter().chain(&self.arguments) {
            // SAFETY: null, or an object that the handle holds a reference to.
            if let Some(object) = unsafe { Borrowed::from_nullable(slot.as_ptr()) } {
                visit(&object);
            }
        }
    }
}

impl TimerHandle {
    /// A new TimerHandle. It is not in the heap yet.
    #[inline(always)]
    pub(crate) fn create(when: Deadline, parts: Parts<'_>) -> Result<TimerRef, Raised> {
        native::create(TimerHandle {
            handle: parts.into_handle(Kind::Timer)?,
            when: Cell::new(when.seconds),
            slot: Cell::new(timer::Slot::NONE),
            given: Slot::new(when.given),
        })
        .map(|timer| TimerRef(HandleRef(timer)))
    }

    /// The deadline as a Python number.
    pub(super) fn shown_when(&self) -> Result<Ref, Raised> {
        self.given.get().map_or_else(|| float(self.when.get()), Ok)
    }
}

impl ThreadSafeHandle {
    /// A new ThreadSafeHandle. It is not queued.
    #[inline(always)]
    pub(crate) fn create(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        native::create(ThreadSafeHandle {
            handle: parts.into_handle(Kind::ThreadSafe)?,
            lock: RunLock::new(),
        })
        .map(HandleRef)
    }
}
