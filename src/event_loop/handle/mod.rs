//! Handle, TimerHandle and ThreadSafeHandle: what `call_soon`, `call_later` and `call_soon_threadsafe` return.
//!
//! Raw heap types, not tracked by the collector: a tracked Handle costs 263 instructions more per
//! callback, a pyclass 490. A cycle through a Handle is broken when it runs or is cancelled, because
//! both empty it; the loop's own traverse enters the handles that only the loop owns. A TimerHandle that somebody
//! else holds as well, as `asyncio.sleep` and `asyncio.timeout` do, is tracked when the loop stops running: only
//! then can the loop itself be a part of the cycle.
//!
//! The callback and up to three arguments lie inline; slot 0 of the argument array stays free for
//! `PY_VECTORCALL_ARGUMENTS_OFFSET`. More arguments are kept as a tuple. A handle is emptied onto the
//! stack before its callback runs, so that a cancel during the run finds nothing to free; handles of
//! `add_reader`/`add_writer` run again and again and are copied instead.
//!
//! `isinstance(handle, asyncio.Handle)` holds through `__class__`, as for a proxy: inheriting would cost
//! what the plain layout saves. Repr, ordering and equality are asyncio's own functions.

mod python;
mod threadsafe;

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;

pub(crate) use python::make_types;

use super::core::Core;
use super::tools;
use crate::capi::call::{call, call_tuple, getattr, method, vectorcall};
use crate::capi::context::{as_object, run_in};
use crate::capi::error::{take_exception, undisturbed};
use crate::capi::freelist::Freelist;
use crate::capi::imports::imports;
use crate::capi::{Raised, Ref, Slot};
use crate::timer;
pub(crate) use threadsafe::ThreadSafeHandle;

/// How many arguments lie inline.
const INLINE: usize = 3;
/// How many dead handles of each kind are kept for reuse. A burst that is larger falls back to malloc.
const FREELIST: usize = 256;

/// What a handle is for. In this order: [`Handle::run`] takes a detour for the last two.
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
    callback: Slot,
    /// Slot 0 is spare; an inline call uses 1..=count, a tuple call has the tuple in 1.
    arguments: [Cell<*mut ffi::PyObject>; INLINE + 1],
    count: Cell<u8>,
    tupled: Cell<bool>,
    cancelled: Cell<bool>,
    kind: Kind,
    /// What `capi::context::context_for` gave: a Context, or bare variables until somebody asks to see one.
    context: Slot,
    event_loop: Slot,
    source_traceback: Slot,
    /// The repr from before a cancel in debug mode, when the callback is already gone.
    shown: Slot,
    weaklist: Cell<*mut ffi::PyObject>,
}

/// A scheduled callback with a deadline, which knows its place in the timer heap.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct TimerHandle {
    handle: Handle,
    when: Cell<f64>,
    slot: Cell<timer::Slot>,
    /// The deadline as it was given, if that was no float: asyncio keeps and shows the very object.
    given: Slot,
}

/// When a timer is due.
pub(crate) struct Deadline {
    /// What timers are ordered by.
    pub(crate) seconds: f64,
    /// What was given, unless it was a float.
    pub(crate) given: Option<Ref>,
}

/// What the timer heap owns.
#[derive(Debug)]
pub(crate) struct TimerRef(pub(crate) Ref);

impl timer::Slotted for TimerRef {
    #[inline(always)]
    fn set_slot(&self, slot: timer::Slot) {
        // SAFETY: a TimerRef is made from TimerHandle objects only.
        unsafe { (*self.0.as_ptr().cast::<TimerHandle>()).slot.set(slot) }
    }
}

static HANDLE_TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());
static TIMER_TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());
static THREAD_SAFE_TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

static HANDLES: Freelist<FREELIST> = Freelist::new();
static TIMERS: Freelist<FREELIST> = Freelist::new();
static THREAD_SAFE: Freelist<FREELIST> = Freelist::new();

/// Is it one of ours (of any kind)?
#[inline(always)]
pub(crate) fn is_handle(object: *mut ffi::PyObject) -> bool {
    // SAFETY: a live object.
    let kind = unsafe { ffi::Py_TYPE(object) };
    // Relaxed: written once at import, with the GIL held, before any handle exists.
    [&HANDLE_TYPE, &TIMER_TYPE, &THREAD_SAFE_TYPE].iter().any(|known| kind == known.load(Ordering::Relaxed))
}

/// Allocates or reuses an object of one of the types, with an owned reference to it.
#[inline(always)]
fn allocate(
    list: &Freelist<FREELIST>,
    kind: &AtomicPtr<ffi::PyTypeObject>,
    size: usize,
) -> Option<*mut ffi::PyObject> {
    // Relaxed: as in `is_handle`.
    let kind = kind.load(Ordering::Relaxed);
    // SAFETY: either a dead object of exactly this type and size, or fresh memory of that size;
    // PyObject_Init sets type and count and takes the reference to the type that dealloc gives back.
    unsafe {
        let object = match list.pop() {
            Some(object) => object,
            None => {
                let object = ffi::PyObject_Malloc(size).cast::<ffi::PyObject>();
                if object.is_null() {
                    ffi::PyErr_NoMemory();
                    return None;
                }
                object
            }
        };
        Some(ffi::PyObject_Init(object, kind))
    }
}

/// What a new handle is made of.
pub(crate) struct Parts<'a> {
    pub(crate) callback: Ref,
    pub(crate) arguments: &'a [*mut ffi::PyObject],
    pub(crate) context: Ref,
}

/// Fills the fields behind the object header.
#[inline(always)]
unsafe fn fill(handle: *mut Handle, core: &Core, parts: Parts<'_>, kind: Kind) -> Result<(), Raised> {
    let count = parts.arguments.len();
    let mut inline = [null_mut(); INLINE + 1];
    let tupled = count > INLINE;
    if tupled {
        // SAFETY: a fresh tuple of `count` slots, each of which gets an owned reference.
        unsafe {
            let tuple = ffi::PyTuple_New(count as ffi::Py_ssize_t);
            for (index, &argument) in parts.arguments.iter().enumerate() {
                if tuple.is_null() {
                    break;
                }
                ffi::Py_INCREF(argument);
                ffi::PyTuple_SET_ITEM(tuple, index as ffi::Py_ssize_t, argument);
            }
            inline[1] = tuple;
        }
    } else {
        for (place, &argument) in inline[1..].iter_mut().zip(parts.arguments) {
            // SAFETY: arguments are borrowed from the caller's frame.
            unsafe { ffi::Py_INCREF(argument) };
            *place = argument;
        }
    }
    // SAFETY: `handle` points to memory of the right size whose header is initialised; the rest is
    // written here without reading what was there.
    unsafe {
        let failed = tupled && inline[1].is_null();
        (&raw mut (*handle).callback).write(Slot::new(Some(parts.callback)));
        (&raw mut (*handle).arguments).write(inline.map(Cell::new));
        (&raw mut (*handle).count).write(Cell::new(if tupled { 1 } else { count as u8 }));
        (&raw mut (*handle).tupled).write(Cell::new(tupled));
        (&raw mut (*handle).cancelled).write(Cell::new(false));
        (&raw mut (*handle).kind).write(kind);
        (&raw mut (*handle).context).write(Slot::new(Some(parts.context)));
        (&raw mut (*handle).event_loop).write(Slot::new(Some(Ref::from_borrowed(core.object()))));
        (&raw mut (*handle).source_traceback).write(Slot::empty());
        (&raw mut (*handle).shown).write(Slot::empty());
        (&raw mut (*handle).weaklist).write(Cell::new(null_mut()));
        if failed { Err(Raised) } else { Ok(()) }
    }
}

impl Handle {
    /// A new Handle that runs once. It is not queued.
    #[inline(always)]
    pub(crate) fn create(core: &Core, parts: Parts<'_>) -> Result<Ref, Raised> {
        Handle::create_kind(core, parts, Kind::Once)
    }

    /// A new Handle that runs as often as it is asked to. It is not watched yet.
    pub(crate) fn create_repeated(core: &Core, parts: Parts<'_>) -> Result<Ref, Raised> {
        Handle::create_kind(core, parts, Kind::Repeated)
    }

    #[inline(always)]
    fn create_kind(core: &Core, parts: Parts<'_>, kind: Kind) -> Result<Ref, Raised> {
        let object = allocate(&HANDLES, &HANDLE_TYPE, size_of::<Handle>()).ok_or(Raised)?;
        // SAFETY: fresh memory of the right type; `fill` initialises every field even when it fails, so
        // that dropping the reference is sound.
        unsafe {
            let filled = fill(object.cast(), core, parts, kind);
            let handle = Ref::from_owned(object).ok_or(Raised)?;
            filled.map(|()| handle)
        }
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

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    pub(crate) fn set_source_traceback(&self, traceback: Option<Ref>) {
        self.source_traceback.set(traceback);
    }

    /// Empties the handle of callback and arguments.
    pub(crate) fn clear(&self) {
        let callback = self.callback.take();
        let count = self.count.replace(0) as usize;
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

    /// What a tracer does that wraps the callback in one of its own.
    fn set_callback(&self, callback: Option<Ref>) {
        if self.count.get() == 0 && callback.is_some() {
            // Spent or running: there is no tuple here.
            self.tupled.set(false);
        }
        self.callback.set(callback);
    }

    fn set_arguments(&self, tuple: Option<Ref>) {
        let callback = self.callback.get();
        self.clear();
        self.count.set(tuple.is_some().into());
        if tuple.is_some() || callback.is_some() {
            self.tupled.set(tuple.is_some());
        }
        self.arguments[1].set(tuple.map_or(null_mut(), Ref::into_ptr));
        self.callback.set(callback);
    }

    /// Cancels: the callback will not run, and what it held is let go. The context too: a handle is not seen
    /// by the collector, and a context variable may lead back to whoever holds it.
    pub(crate) fn cancel(&self) {
        self.cancelled.set(true);
        self.clear();
        self.context.clear();
    }

    /// Runs the callback in its context. A cancelled or spent handle does nothing. On an error the
    /// callback is put back first, so that the report can name it.
    #[inline(always)]
    pub(crate) fn run(&self) -> Result<(), Raised> {
        if self.callback.is_empty() {
            return Ok(());
        }
        match self.kind {
            Kind::Once | Kind::Timer => self.run_once(),
            Kind::Repeated => self.run_copy(),
            Kind::ThreadSafe => self.run_locked(Handle::run_once),
        }
    }

    /// The same in debug mode, where the log may want to name the callback afterwards. [`spent`] is to follow.
    #[cold]
    pub(crate) fn run_debug(&self) -> Result<(), Raised> {
        match self.kind {
            Kind::ThreadSafe => self.run_locked(Handle::run_copy),
            _ => self.run_copy(),
        }
    }

    /// Has the callback run by the tool in the place of `asyncio.Handle._run`, which sees the handle as an
    /// `asyncio.Handle`. False if there is none. [`spent`] is to follow.
    #[cold]
    pub(crate) fn run_by_tool(&self) -> Result<bool, Raised> {
        let Some(tool) = tools::handle_run()? else { return Ok(false) };
        let show = |handle: &Handle| call(&tool, &[std::ptr::from_ref(handle).cast_mut().cast()]).map(drop);
        match self.kind {
            Kind::ThreadSafe => self.run_locked(show),
            _ => show(self),
        }
        .map(|()| true)
    }

    #[inline(always)]
    fn run_once(&self) -> Result<(), Raised> {
        let (Some(callback), Some(context)) = (self.callback.take(), self.context.take()) else {
            return Ok(());
        };
        let count = self.count.replace(0) as usize;
        let mut stack = [null_mut(); INLINE + 1];
        for (place, argument) in stack[1..=count].iter_mut().zip(&self.arguments[1..=count]) {
            *place = argument.get();
        }
        let result = self.invoke(&callback, context, &mut stack, count);
        match result {
            Ok(()) => {
                drop(callback);
                for argument in &stack[1..=count] {
                    // SAFETY: moved out of the handle above; a callee may use the spare slot only.
                    drop(unsafe { Ref::from_owned(*argument) });
                }
                Ok(())
            }
            Err((raised, context)) => {
                // Cancelled, or given something else by the callback.
                if self.cancelled.get() || !self.callback.is_empty() || self.count.get() > 0 {
                    for argument in &stack[1..=count] {
                        // SAFETY: as above. The error is kept out of the destructors' way by being set.
                        drop(unsafe { Ref::from_owned(*argument) });
                    }
                    self.keep_context(context);
                } else {
                    for (argument, value) in self.arguments[1..=count].iter().zip(&stack[1..=count]) {
                        argument.set(*value);
                    }
                    self.count.set(count as u8);
                    self.callback.set(Some(callback));
                    self.context.set(Some(context));
                }
                Err(raised)
            }
        }
    }

    /// Runs and keeps what it holds: a watcher's handle, or any handle in debug mode, where the slow
    /// callback log names the callback afterwards.
    #[cold]
    fn run_copy(&self) -> Result<(), Raised> {
        let (Some(callback), Some(context)) = (self.callback.get(), self.context_object()?) else {
            return Ok(());
        };
        let count = self.count.get() as usize;
        let mut stack = [null_mut(); INLINE + 1];
        let mut owned = [const { None }; INLINE + 1];
        for (index, argument) in self.arguments.iter().enumerate().take(count + 1).skip(1) {
            stack[index] = argument.get();
            // SAFETY: the handle holds a reference.
            owned[index] = unsafe { Ref::from_nullable(stack[index]) };
        }
        self.invoke(&callback, context, &mut stack, count).map_err(|(raised, context)| {
            self.keep_context(context);
            raised
        })
    }

    /// After a failure, for the report, which is told in the callback's context even if that has cancelled its own
    /// handle. [`spent`] is to follow.
    fn keep_context(&self, context: Ref) {
        if self.context.is_empty() {
            self.context.set(Some(context));
        }
    }

    /// The Context in which the callback runs, for whoever wants to see it. From then on it is that object.
    fn context_object(&self) -> Result<Option<Ref>, Raised> {
        let Some(context) = self.context.get() else { return Ok(None) };
        let object = as_object(context)?;
        self.context.set(Some(object.clone_ref()));
        Ok(Some(object))
    }

    #[inline(always)]
    fn invoke(
        &self,
        callback: &Ref,
        context: Ref,
        stack: &mut [*mut ffi::PyObject; INLINE + 1],
        count: usize,
    ) -> Result<(), (Raised, Ref)> {
        run_in(context, || {
            if self.tupled.get() {
                // SAFETY: a tupled handle has its tuple in place 1.
                unsafe { call_tuple(callback, stack[1], null_mut()) }
            } else {
                // SAFETY: `count` live arguments behind one spare slot.
                unsafe { vectorcall(callback.as_ptr(), stack.as_mut_ptr().add(1), count) }
            }
        })
        .map(drop)
    }

    /// The arguments as Python shows them: a tuple, or `None` once they are gone.
    fn arguments_tuple(&self) -> Result<Ref, Raised> {
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

    /// Enters the handle's own references: for its own traverse, and for the loop's while it has none.
    ///
    /// # Safety
    /// Called by the collector, and only for handles that it tracks or that nobody but the caller refers to.
    pub(crate) unsafe fn visit(&self, visit: &mut dyn FnMut(*mut ffi::PyObject) -> i32) -> i32 {
        let slots = [&self.callback, &self.context, &self.event_loop].map(Slot::as_ptr);
        let arguments = self.arguments.iter().skip(1).take(self.count.get() as usize).map(Cell::get);
        for object in slots.into_iter().chain(arguments).filter(|object| !object.is_null()) {
            let result = visit(object);
            if result != 0 {
                return result;
            }
        }
        0
    }
}

impl TimerHandle {
    /// A new TimerHandle. It is not in the heap yet.
    #[inline(always)]
    pub(crate) fn create(core: &Core, when: Deadline, parts: Parts<'_>) -> Result<Ref, Raised> {
        // Relaxed: as in `is_handle`.
        let kind = TIMER_TYPE.load(Ordering::Relaxed);
        // SAFETY: as in `Handle::create`; the fields behind the handle are written first. The list is of this type.
        unsafe {
            let object = TIMERS.new_gc(kind);
            if object.is_null() {
                return Err(Raised);
            }
            let timer = object.cast::<TimerHandle>();
            (&raw mut (*timer).when).write(Cell::new(when.seconds));
            (&raw mut (*timer).slot).write(Cell::new(timer::Slot::NONE));
            (&raw mut (*timer).given).write(Slot::new(when.given));
            let filled = fill(object.cast(), core, parts, Kind::Timer);
            let handle = Ref::from_owned(object).ok_or(Raised)?;
            filled.map(|()| handle)
        }
    }

    /// Has the collector look into the handle if anybody but the heap refers to it.
    pub(crate) fn track_shared(object: &Ref) {
        let object = object.as_ptr();
        // SAFETY: a live TimerHandle, with all its fields written; it is untracked when it dies.
        unsafe {
            if ffi::Py_REFCNT(object) > 1 && ffi::PyObject_GC_IsTracked(object) == 0 {
                ffi::PyObject_GC_Track(object.cast());
            }
        }
    }

    /// The deadline as a Python number. Owned, or null with an error.
    fn shown_when(&self) -> *mut ffi::PyObject {
        match self.given.get() {
            Some(given) => given.into_ptr(),
            // SAFETY: making a number.
            None => unsafe { ffi::PyFloat_FromDouble(self.when.get()) },
        }
    }

    /// # Safety
    /// `object` is a TimerHandle and outlives the result.
    unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a TimerHandle {
        // SAFETY: the caller's word; all fields are cells.
        unsafe { &*object.cast() }
    }
}

/// Lets go of all that a handle holds: its loop is closed, and it will not run.
pub(crate) fn empty(handle: &Ref) {
    // SAFETY: callers pass handles of ours.
    let handle = unsafe { Handle::of(handle.as_ptr()) };
    handle.clear();
    handle.context.clear();
}

/// After a run that kept what the handle held: it is let go, unless the handle runs again.
pub(crate) fn spent(handle: &Ref) {
    // SAFETY: callers pass handles of ours.
    let own = unsafe { Handle::of(handle.as_ptr()) };
    if own.kind != Kind::Repeated || own.is_cancelled() {
        empty(handle);
    }
}

/// After a report that named the callback: what the handle holds is let go, unless it runs again. Who has kept it
/// since, when it had so many `owners`, still sees in its repr what it was.
#[cold]
pub(crate) fn reported(handle: &Ref, owners: ffi::Py_ssize_t) {
    // SAFETY: callers pass handles of ours.
    let (own, kept) = unsafe { (Handle::of(handle.as_ptr()), ffi::Py_REFCNT(handle.as_ptr()) > owners) };
    if kept && own.kind != Kind::Repeated && own.shown.is_empty() {
        // SAFETY: a live handle; an owned reference or null with an error.
        undisturbed(|| match unsafe { Ref::from_owned(ffi::PyObject_Repr(handle.as_ptr())) } {
            Some(text) => own.shown.set(Some(text)),
            // A callback whose own repr fails.
            None => drop(take_exception()),
        });
    }
    spent(handle);
}

/// Runs a handle that is not ours: `asyncio.Handle` from inherited code or a third party.
pub(crate) fn run_foreign(handle: &Ref) -> Result<(), Raised> {
    let names = imports();
    let cancelled = getattr(handle.as_ptr(), names._cancelled.as_ptr())?;
    // SAFETY: a live object.
    match unsafe { ffi::PyObject_IsTrue(cancelled.as_ptr()) } {
        1 => Ok(()),
        0 => method(handle, names._run.as_ptr(), &[]).map(drop),
        _ => Err(Raised),
    }
}
