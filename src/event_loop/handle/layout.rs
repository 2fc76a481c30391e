//! What a handle is: its fields, how it is made, emptied and shown to the collector.
//!
//! Handles are raw heap types that the collector does not track: a tracked Handle costs 263 instructions more per
//! callback, a pyclass 490. A cycle through a Handle is broken when it runs or is cancelled, because both empty it; the
//! loop's own traverse enters the handles that only the loop owns. A TimerHandle that somebody else holds as well, as
//! `asyncio.sleep` and `asyncio.timeout` do, is tracked when the loop stops running: only then can the loop itself be a
//! part of the cycle.
//!
//! The callback and up to three arguments lie inline; slot 0 of the argument array stays free for
//! `PY_VECTORCALL_ARGUMENTS_OFFSET`. More arguments are kept as a tuple.
//!
//! `isinstance(handle, asyncio.Handle)` holds through `__class__`, as for a proxy: to inherit would cost what the plain
//! layout saves.

use std::cell::Cell;
use std::ptr::null_mut;

use pyo3::ffi;

use super::super::core::loop_ref::{LoopRef, LoopSlot};
use super::run_lock::RunLock;
use crate::capi::inspect::float;
use crate::capi::native::{Class, Native, WeakList};
use crate::capi::recycle::context::as_object;
use crate::capi::recycle::freelist::Freelist;
use crate::capi::{Borrowed, Raised, Ref, Slot};
use crate::timer;

/// How many arguments lie inline.
pub(super) const INLINE: usize = 3;
/// How many dead handles of each kind are kept for reuse. A burst that is larger falls back to malloc.
const FREELIST: usize = 256;

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
    base: ffi::PyObject,
    pub(super) callback: Slot,
    /// Slot 0 is spare; an inline call uses 1..=count, a tuple call has the tuple in 1.
    pub(super) arguments: [Cell<*mut ffi::PyObject>; INLINE + 1],
    pub(super) count: Cell<u8>,
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

/// When a timer is due.
pub(crate) struct Deadline {
    /// What timers are ordered by.
    pub(crate) seconds: f64,
    /// What was given, unless it was a float.
    pub(crate) given: Option<Ref>,
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
        unsafe { Handle::of(self.0.as_ptr()) }
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

    fn timer(&self) -> &TimerHandle {
        // SAFETY: `TimerHandle::create` alone makes these; the reference keeps the handle alive.
        unsafe { TimerHandle::of(self.0.object().as_ptr()) }
    }

    /// Shows the handle to the collector if it is referred to by more than the heap.
    pub(crate) fn track_shared(&self) {
        let object = self.0.object();
        if !object.is_unique()
            && let Some(timer) = object.downcast::<TimerHandle>()
        {
            timer.track();
        }
    }
}

impl timer::Slotted for TimerRef {
    #[inline(always)]
    fn set_slot(&self, slot: timer::Slot) {
        self.timer().slot.set(slot);
    }
}

static HANDLE: Class = Class::new();
static TIMER_HANDLE: Class = Class::new();
static THREAD_SAFE_HANDLE: Class = Class::new();

// SAFETY: `repr(C)`, and the object's header comes first; `create` makes every instance. The same for the two below.
unsafe impl Native for Handle {
    const COLLECTED: bool = false;

    #[inline(always)]
    fn class() -> &'static Class {
        &HANDLE
    }

    #[inline(always)]
    fn offset() -> usize {
        0
    }
}

// SAFETY: as above.
unsafe impl Native for TimerHandle {
    #[inline(always)]
    fn class() -> &'static Class {
        &TIMER_HANDLE
    }

    #[inline(always)]
    fn offset() -> usize {
        0
    }
}

// SAFETY: as above.
unsafe impl Native for ThreadSafeHandle {
    const COLLECTED: bool = false;

    #[inline(always)]
    fn class() -> &'static Class {
        &THREAD_SAFE_HANDLE
    }

    #[inline(always)]
    fn offset() -> usize {
        0
    }
}

static HANDLES: Freelist = Freelist::new(FREELIST);
static TIMERS: Freelist = Freelist::new(FREELIST);
static THREAD_SAFE: Freelist = Freelist::new(FREELIST);

/// Is it one of ours (of any kind)?
#[inline(always)]
pub(crate) fn is_handle(object: &Ref) -> bool {
    let kind = object.kind();
    [&HANDLE, &TIMER_HANDLE, &THREAD_SAFE_HANDLE].iter().any(|class| kind == class.as_ptr())
}

/// Allocates or reuses an object of one of the types, with an owned reference to it. Its fields are not written yet.
#[inline(always)]
fn allocate(list: &Freelist, class: &Class, size: usize) -> Result<*mut ffi::PyObject, Raised> {
    // SAFETY: the list is of this class. Fresh memory is of its size; PyObject_Init sets class and count, and takes the
    // reference to the class that `Handle::free` drops.
    unsafe {
        if let Some(object) = list.take(class.as_ptr()) {
            return Ok(object);
        }
        let object = ffi::PyObject_Malloc(size).cast::<ffi::PyObject>();
        if object.is_null() {
            ffi::PyErr_NoMemory();
            return Err(Raised);
        }
        Ok(ffi::PyObject_Init(object, class.as_ptr()))
    }
}

/// What a new handle is made of.
pub(crate) struct Parts<'a> {
    pub(crate) event_loop: LoopRef,
    pub(crate) callback: Ref,
    pub(crate) arguments: &'a [Borrowed<'a>],
    pub(crate) context: Ref,
}

/// The arguments as a tuple. Owned, or null with an error.
#[cold]
fn tuple_of(arguments: &[Borrowed<'_>]) -> *mut ffi::PyObject {
    // SAFETY: a fresh tuple with one place for each argument, which gets an owned reference.
    unsafe {
        let tuple = ffi::PyTuple_New(arguments.len() as ffi::Py_ssize_t);
        if !tuple.is_null() {
            for (index, argument) in arguments.iter().enumerate() {
                ffi::PyTuple_SET_ITEM(tuple, index as ffi::Py_ssize_t, argument.clone_ref().into_ptr());
            }
        }
        tuple
    }
}

/// Fills the fields behind the object header. All of them, even on an error: the reference is dropped then.
///
/// # Safety
/// `object` is an owned reference to memory of a handle type, of this kind, with an initialised header. Fields that its
/// type has beyond [`Handle`] are written.
#[inline(always)]
unsafe fn fill(object: *mut ffi::PyObject, parts: Parts<'_>, kind: Kind) -> Result<HandleRef, Raised> {
    let count = parts.arguments.len();
    let inline = [const { Cell::new(null_mut()) }; INLINE + 1];
    let tupled = count > INLINE;
    if tupled {
        inline[1].set(tuple_of(parts.arguments));
    } else {
        for (index, argument) in parts.arguments.iter().enumerate() {
            inline[index + 1].set(argument.clone_ref().into_ptr());
        }
    }
    let failed = tupled && inline[1].get().is_null();
    let handle = object.cast::<Handle>();
    // SAFETY: the caller's contract; the fields are written without reading what was there.
    let handle = unsafe {
        (&raw mut (*handle).callback).write(Slot::new(Some(parts.callback)));
        (&raw mut (*handle).arguments).write(inline);
        (&raw mut (*handle).count).write(Cell::new(if tupled { 1 } else { count as u8 }));
        (&raw mut (*handle).tupled).write(Cell::new(tupled));
        (&raw mut (*handle).cancelled).write(Cell::new(false));
        (&raw mut (*handle).kind).write(kind);
        (&raw mut (*handle).context).write(Slot::new(Some(parts.context)));
        (&raw mut (*handle).event_loop).write(LoopSlot::new(parts.event_loop));
        (&raw mut (*handle).source_traceback).write(Slot::empty());
        (&raw mut (*handle).shown).write(Slot::empty());
        (&raw mut (*handle).weaklist).write(WeakList::new());
        Ref::from_owned(object).map(HandleRef).ok_or(Raised)?
    };
    if failed { Err(Raised) } else { Ok(handle) }
}

impl Handle {
    /// A new Handle that runs once. It is not queued.
    #[inline(always)]
    pub(crate) fn create(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        Handle::create_kind(parts, Kind::Once)
    }

    /// A new Handle that runs as often as it is asked to. It is not watched yet.
    pub(crate) fn create_repeated(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        Handle::create_kind(parts, Kind::Repeated)
    }

    #[inline(always)]
    fn create_kind(parts: Parts<'_>, kind: Kind) -> Result<HandleRef, Raised> {
        let object = allocate(&HANDLES, &HANDLE, size_of::<Handle>())?;
        // SAFETY: fresh memory of the right type.
        unsafe { fill(object, parts, kind) }
    }

    /// The handle behind a reference to one.
    ///
    /// # Safety
    /// `object` is one of our handles ([`is_handle`]) and outlives the result.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a Handle {
        // SAFETY: all the types begin with this layout; all fields but the constant kind are cells.
        unsafe { &*object.cast() }
    }

    /// The object, if it is one of our handles.
    #[inline(always)]
    pub(crate) fn from_object(object: &Ref) -> Option<&Handle> {
        // SAFETY: just tested; borrowed from the reference.
        is_handle(object).then(|| unsafe { Handle::of(object.as_ptr()) })
    }

    /// The Python object, borrowed.
    #[inline(always)]
    pub(super) fn as_ptr(&self) -> *mut ffi::PyObject {
        std::ptr::from_ref(self).cast_mut().cast()
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

    /// Empties the handle of callback and arguments.
    pub(crate) fn clear(&self) {
        let (callback, count) = (self.callback.take(), self.count.replace(0) as usize);
        let mut taken = [null_mut(); INLINE + 1];
        for (place, argument) in taken[1..=count].iter_mut().zip(&self.arguments[1..=count]) {
            *place = argument.replace(null_mut());
        }
        // Only now may destructors run: the handle is sound again.
        drop(callback);
        for argument in &taken[1..=count] {
            // SAFETY: the handle owned these references.
            drop(unsafe { Ref::from_owned(*argument) });
        }
    }

    /// A handle that has run, or was cancelled, holds nothing that its end could free.
    #[inline(always)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.callback.is_empty() && self.context.is_empty() && self.source_traceback.is_empty()
    }

    /// What a tracer does that wraps the callback in one of its own.
    pub(super) fn set_callback(&self, callback: Option<Ref>) {
        if self.count.get() == 0 && callback.is_some() {
            // Spent or running: there is no tuple here.
            self.tupled.set(false);
        }
        self.callback.set(callback);
    }

    pub(super) fn set_arguments(&self, tuple: Option<Ref>) {
        let callback = self.callback.get();
        self.clear();
        self.count.set(tuple.is_some().into());
        if tuple.is_some() || callback.is_some() {
            self.tupled.set(tuple.is_some());
        }
        self.arguments[1].set(tuple.map_or(null_mut(), Ref::into_ptr));
        self.callback.set(callback);
    }

    /// Cancels: the callback will not run, and the handle drops what it holds. The context too: the collector does not
    /// see the handle, and a context variable may lead back to an object that holds it.
    pub(crate) fn cancel(&self) {
        self.cancelled.set(true);
        self.empty();
    }

    /// Drops what a run would need.
    pub(crate) fn empty(&self) {
        self.clear();
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
    pub(super) fn arguments_tuple(&self) -> Result<Ref, Raised> {
        if self.callback.is_empty() {
            return Ok(Ref::none());
        }
        if self.tupled.get() {
            // SAFETY: a tupled handle holds its tuple in place 1.
            return Ok(unsafe { Ref::from_borrowed(self.arguments[1].get()) });
        }
        let count = self.count.get() as usize;
        // SAFETY: a fresh tuple whose slots are filled with new references.
        unsafe {
            let tuple = Ref::from_owned(ffi::PyTuple_New(count as ffi::Py_ssize_t)).ok_or(Raised)?;
            for index in 0..count {
                let argument = self.arguments[index + 1].get();
                ffi::Py_INCREF(argument);
                ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index as ffi::Py_ssize_t, argument);
            }
            Ok(tuple)
        }
    }

    /// Shows the collector the handle's own references: for its own traverse, and for the loop's while it has none.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Ref) -> i32) -> i32 {
        let slots = [&self.callback, &self.context, self.event_loop.slot()].map(Slot::as_ptr);
        let arguments = self.arguments.iter().skip(1).take(self.count.get() as usize).map(Cell::get);
        for object in slots.into_iter().chain(arguments) {
            // SAFETY: null, or an object that the handle holds a reference to.
            if let Some(object) = unsafe { Borrowed::from_nullable(object) } {
                let result = visit(&object);
                if result != 0 {
                    return result;
                }
            }
        }
        0
    }

    /// Empties a dead handle and gives its memory back.
    ///
    /// # Safety
    /// `object` is one of our handles without references, and this is called once for it.
    pub(super) unsafe fn free(object: *mut ffi::PyObject) {
        // SAFETY: the caller's contract. The memory goes back to the list that it came from, or to the allocator.
        unsafe {
            let handle = Handle::of(object);
            if !handle.holds_nothing() || handle.count.get() > 0 {
                handle.empty();
            }
            drop(handle.event_loop.take());
            handle.source_traceback.clear();
            handle.shown.clear();
            let list = match handle.kind {
                Kind::Once | Kind::Repeated => &HANDLES,
                Kind::Timer => {
                    TimerHandle::of(object).given.clear();
                    return TIMERS.free_gc(object);
                }
                Kind::ThreadSafe => {
                    handle.lock().inspect(|lock| lock.clear());
                    &THREAD_SAFE
                }
            };
            let kind = ffi::Py_TYPE(object);
            if !list.keep(object) {
                ffi::PyObject_Free(object.cast());
            }
            ffi::Py_DECREF(kind.cast());
        }
    }
}

impl TimerHandle {
    /// A new TimerHandle. It is not in the heap yet.
    #[inline(always)]
    pub(crate) fn create(when: Deadline, parts: Parts<'_>) -> Result<TimerRef, Raised> {
        // SAFETY: the list is of this type; the fields behind the handle are written first.
        unsafe {
            let object = TIMERS.new_gc(TIMER_HANDLE.as_ptr());
            if object.is_null() {
                return Err(Raised);
            }
            let timer = object.cast::<TimerHandle>();
            (&raw mut (*timer).when).write(Cell::new(when.seconds));
            (&raw mut (*timer).slot).write(Cell::new(timer::Slot::NONE));
            (&raw mut (*timer).given).write(Slot::new(when.given));
            fill(object, parts, Kind::Timer).map(TimerRef)
        }
    }

    /// The deadline as a Python number.
    pub(super) fn shown_when(&self) -> Result<Ref, Raised> {
        self.given.get().map_or_else(|| float(self.when.get()), Ok)
    }

    /// # Safety
    /// `object` is a TimerHandle and outlives the result.
    unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a TimerHandle {
        // SAFETY: the caller's contract; all fields are cells.
        unsafe { &*object.cast() }
    }
}

impl ThreadSafeHandle {
    /// A new ThreadSafeHandle. It is not queued.
    #[inline(always)]
    pub(crate) fn create(parts: Parts<'_>) -> Result<HandleRef, Raised> {
        let object = allocate(&THREAD_SAFE, &THREAD_SAFE_HANDLE, size_of::<ThreadSafeHandle>())?;
        // SAFETY: fresh memory of the right type; the field behind the handle is written first.
        unsafe {
            (&raw mut (*object.cast::<ThreadSafeHandle>()).lock).write(RunLock::new());
            fill(object, parts, Kind::ThreadSafe)
        }
    }
}
