//! Handles as Python sees them: the three types and what is in their tables.
//!
//! Repr, ordering and equality are asyncio's own Python functions, called with our object as `self`; they
//! read the attributes that are given here.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use pyo3::ffi;
use pyo3::prelude::*;

use super::layout::{
    HANDLE_TYPE, HANDLES, Handle, HandleRef, Kind, THREAD_SAFE, THREAD_SAFE_TYPE, TIMER_TYPE, TIMERS,
    ThreadSafeHandle, TimerHandle,
};
use crate::capi::call::{call, guard};
use crate::capi::imports::imports;
use crate::capi::inspect::given_truth;
use crate::capi::types::{Attribute, Method, TypeSpec};
use crate::capi::{Raised, Ref};

/// How many deallocations may nest. A handle can be an argument of another, and a long chain of them would
/// use up the stack; past this the rest waits in [`LATER`].
const NESTED: usize = 50;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Dead handles whose content is let go when the outermost deallocation is done.
    static LATER: RefCell<Vec<*mut ffi::PyObject>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: CPython calls this once, for an object of one of the types with no references left.
    unsafe {
        if !Handle::of(object).weaklist.get().is_null() {
            ffi::PyObject_ClearWeakRefs(object);
        }
        let depth = DEPTH.get();
        if depth == NESTED {
            LATER.with_borrow_mut(|later| later.push(object));
            return;
        }
        DEPTH.set(depth + 1);
        free(object);
        while depth == 0
            && let Some(next) = LATER.with_borrow_mut(Vec::pop)
        {
            free(next);
        }
        DEPTH.set(depth);
    }
}

unsafe extern "C" fn timer_dealloc(object: *mut ffi::PyObject) {
    // SAFETY: as in `dealloc`, for a type with a collector's header; most were never tracked.
    unsafe {
        ffi::PyObject_GC_UnTrack(object.cast());
        dealloc(object);
    }
}

unsafe extern "C" fn timer_traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the collector's call for a TimerHandle that it tracks, with its own visitor.
    unsafe {
        let kind = visit(ffi::Py_TYPE(object).cast(), argument);
        if kind != 0 { kind } else { Handle::of(object).visit(&mut |held| visit(held, argument)) }
    }
}

/// Empties a dead handle and gives its memory back.
///
/// # Safety
/// `object` is one of our handles without references, and this is called once for it.
unsafe fn free(object: *mut ffi::PyObject) {
    // SAFETY: the caller's word.
    unsafe {
        let handle = Handle::of(object);
        handle.clear();
        handle.context.clear();
        handle.event_loop.clear();
        handle.source_traceback.clear();
        handle.shown.clear();
        let kind = ffi::Py_TYPE(object);
        let list = match handle.kind {
            Kind::Once | Kind::Repeated => &HANDLES,
            Kind::Timer => {
                TimerHandle::of(object).given.clear();
                TIMERS.free_gc(object);
                return;
            }
            Kind::ThreadSafe => {
                if let Some(lock) = handle.lock() {
                    lock.clear();
                }
                &THREAD_SAFE
            }
        };
        if !list.push(object) {
            ffi::PyObject_Free(object.cast());
        }
        ffi::Py_DECREF(kind.cast());
    }
}

unsafe extern "C" fn cancel(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method table belongs to our types.
        let handle = unsafe { Handle::of(object) };
        if handle.wait_for_run().is_err() {
            return null_mut();
        }
        if handle.kind == Kind::Timer {
            // SAFETY: a TimerHandle.
            unsafe { unschedule(object) };
        }
        if !handle.cancelled.replace(true) {
            if handle.event_loop().is_some_and(|event_loop| event_loop.core().is_debug()) {
                // SAFETY: a live handle.
                handle.shown.set(unsafe { Ref::from_owned(ffi::PyObject_Repr(object)) });
                if handle.shown.is_empty() {
                    return null_mut();
                }
            }
            handle.cancel();
        }
        Ref::none().into_ptr()
    })
}

unsafe extern "C" fn cancelled(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method table belongs to our types.
        let handle = unsafe { Handle::of(object) };
        match handle.wait_for_run() {
            // SAFETY: making a bool cannot fail.
            Ok(()) => unsafe { ffi::PyBool_FromLong(handle.cancelled.get().into()) },
            Err(Raised) => null_mut(),
        }
    })
}

unsafe extern "C" fn get_context(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the method table belongs to our types.
    guard(|| shown_context(unsafe { Handle::of(object) }))
}

fn shown_context(handle: &Handle) -> *mut ffi::PyObject {
    handle.context_object().map_or(null_mut(), |context| context.unwrap_or_else(Ref::none).into_ptr())
}

unsafe extern "C" fn when(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: only TimerHandle has this method.
    unsafe { TimerHandle::of(object) }.shown_when()
}

/// `_run()`: for a `_run_once` written in Python, which third parties have. Errors go where asyncio sends them; the
/// fatal two are raised.
unsafe extern "C" fn run(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method table belongs to our types; held for the time of the run.
        let Ok(handle) = HandleRef::new(unsafe { Ref::from_borrowed(object) }) else { return null_mut() };
        match handle.run_by_patch() {
            Ok(false) => {}
            Ok(true) => {
                handle.spent();
                return Ref::none().into_ptr();
            }
            Err(Raised) => return null_mut(),
        }
        if let (Err(raised), Some(event_loop)) = (handle.run(), handle.event_loop())
            && event_loop.core().report_handle(&handle, raised).is_err()
        {
            return null_mut();
        }
        Ref::none().into_ptr()
    })
}

unsafe extern "C" fn repr_info(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| asyncio_method(object, c"_repr_info", &[]))
}

/// Calls the function that asyncio's class of the same kind has under this name, with us as `self`.
fn asyncio_method(
    object: *mut ffi::PyObject,
    name: &std::ffi::CStr,
    arguments: &[*mut ffi::PyObject],
) -> *mut ffi::PyObject {
    // SAFETY: one of our types; `arguments` live.
    unsafe {
        let class = class_of(object);
        let Some(function) = Ref::from_owned(ffi::PyObject_GetAttrString(class.as_ptr(), name.as_ptr()))
        else {
            return null_mut();
        };
        let mut all = vec![object];
        all.extend_from_slice(arguments);
        call(&function, &all).map_or(null_mut(), Ref::into_ptr)
    }
}

/// The asyncio class that the handle stands in for.
///
/// # Safety
/// `object` is one of our handles.
unsafe fn class_of(object: *mut ffi::PyObject) -> &'static Ref {
    // SAFETY: the caller's word.
    match unsafe { Handle::of(object) }.kind {
        Kind::Once | Kind::Repeated => &imports().handle_class,
        Kind::Timer => &imports().timer_handle_class,
        Kind::ThreadSafe => &imports().thread_safe_handle_class,
    }
}

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| asyncio_method(object, c"__repr__", &[]))
}

unsafe extern "C" fn compare(
    object: *mut ffi::PyObject,
    other: *mut ffi::PyObject,
    operation: c_int,
) -> *mut ffi::PyObject {
    guard(|| {
        let name = match operation {
            ffi::Py_LT => c"__lt__",
            ffi::Py_LE => c"__le__",
            ffi::Py_EQ => c"__eq__",
            ffi::Py_GT => c"__gt__",
            ffi::Py_GE => c"__ge__",
            _ => return not_equal(object, other),
        };
        // SAFETY: the slot belongs to our types.
        if unsafe { Handle::of(object) }.kind == Kind::Timer {
            asyncio_method(object, name, &[other])
        } else {
            identity(object, other, operation)
        }
    })
}

fn not_equal(object: *mut ffi::PyObject, other: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: one of our types.
    if unsafe { Handle::of(object) }.kind != Kind::Timer {
        return identity(object, other, ffi::Py_NE);
    }
    let equal = asyncio_method(object, c"__eq__", &[other]);
    // SAFETY: an owned reference or null; `PyObject_Not` on a bool cannot fail.
    unsafe {
        if equal.is_null() || equal == ffi::Py_NotImplemented() {
            return equal;
        }
        let equal = Ref::from_owned(equal);
        let negated = equal.map_or(0, |it| ffi::PyObject_Not(it.as_ptr()));
        ffi::PyBool_FromLong(negated.into())
    }
}

/// Plain handles compare by identity, as any object that does not say otherwise.
fn identity(object: *mut ffi::PyObject, other: *mut ffi::PyObject, operation: c_int) -> *mut ffi::PyObject {
    // SAFETY: statics of the interpreter; NotImplemented is handed out with a new reference.
    unsafe {
        match operation {
            ffi::Py_EQ if object == other => ffi::PyBool_FromLong(1),
            ffi::Py_NE if object == other => ffi::PyBool_FromLong(0),
            _ => Ref::from_borrowed(ffi::Py_NotImplemented()).into_ptr(),
        }
    }
}

unsafe extern "C" fn hash(object: *mut ffi::PyObject) -> ffi::Py_hash_t {
    // SAFETY: the slot belongs to our types.
    unsafe {
        if Handle::of(object).kind == Kind::Timer {
            return Ref::from_owned(TimerHandle::of(object).shown_when())
                .map_or(-1, |when| ffi::PyObject_Hash(when.as_ptr()));
        }
        // As for any object that hashes by identity.
        let address = object as usize;
        let rotated = address.rotate_right(4) as ffi::Py_hash_t;
        if rotated == -1 { -2 } else { rotated }
    }
}

macro_rules! getter {
    ($name:ident, $handle:ident => $value:expr) => {
        unsafe extern "C" fn $name(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
            // SAFETY: the attribute table belongs to our types.
            let $handle = unsafe { Handle::of(object) };
            $value
        }
    };
}

getter!(get_callback, handle => handle.callback.get_or_none());
getter!(get_arguments, handle => guard(|| handle.arguments_tuple().map_or(null_mut(), Ref::into_ptr)));
getter!(get_context_field, handle => guard(|| shown_context(handle)));
getter!(get_loop, handle => handle.event_loop.get_or_none());
getter!(get_cancelled, handle => {
    // SAFETY: making a bool cannot fail.
    unsafe { ffi::PyBool_FromLong(handle.cancelled.get().into()) }
});
getter!(get_source_traceback, handle => handle.source_traceback.get_or_none());
getter!(get_repr, handle => handle.shown.get_or_none());

unsafe extern "C" fn get_class(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: the attribute table belongs to our types.
    unsafe { class_of(object) }.clone_ref().into_ptr()
}

unsafe extern "C" fn get_when(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: only TimerHandle has this attribute.
    unsafe { TimerHandle::of(object) }.shown_when()
}

unsafe extern "C" fn get_scheduled(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: only TimerHandle has this attribute.
    unsafe { ffi::PyBool_FromLong((!TimerHandle::of(object).slot.get().is_none()).into()) }
}

/// asyncio's loop says so of a timer that it takes out of its list: then ours is no longer in the heap either.
unsafe extern "C" fn set_scheduled(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a borrowed argument, or null for a deletion.
        match unsafe { given_truth(value) } {
            // SAFETY: only TimerHandle has this attribute.
            Ok(false) => unsafe { unschedule(object) },
            // Only the loop schedules.
            Ok(true) => {}
            Err(Raised) => return -1,
        }
        0
    })
}

/// Takes a timer out of its loop's heap, if it is there.
///
/// # Safety
/// `object` is a TimerHandle.
#[inline(always)]
unsafe fn unschedule(object: *mut ffi::PyObject) {
    // SAFETY: the caller's word.
    let (handle, slot) = unsafe { (Handle::of(object), TimerHandle::of(object).slot.get()) };
    if let Some(event_loop) = handle.event_loop()
        && !slot.is_none()
    {
        drop(event_loop.core().timers.remove(slot));
    }
}

unsafe extern "C" fn set_callback(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the attribute table belongs to our types; a borrowed argument, or null for a deletion; `None` is
        // compared by address.
        unsafe {
            let callback = Ref::from_nullable(value).filter(|it| it.as_ptr() != ffi::Py_None());
            Handle::of(object).set_callback(callback);
        }
        0
    })
}

unsafe extern "C" fn set_arguments(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: as in `set_callback`; a new tuple, or null with an error.
        unsafe {
            let tuple = match Ref::from_nullable(value).filter(|it| it.as_ptr() != ffi::Py_None()) {
                None => None,
                Some(value) => match Ref::from_owned(ffi::PySequence_Tuple(value.as_ptr())) {
                    None => return -1,
                    tuple => tuple,
                },
            };
            Handle::of(object).set_arguments(tuple);
        }
        0
    })
}

unsafe extern "C" fn set_traceback(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the attribute table belongs to our types; `value` is null for a deletion.
    unsafe { Handle::of(object).source_traceback.set(Ref::from_nullable(value)) };
    0
}

/// All the types have these; a timer's cancel also takes it out of the heap.
const METHODS: [Method; 5] = [
    Method::NoArgs(c"cancel", cancel, c"Cancel the callback: it will not run."),
    Method::NoArgs(c"cancelled", cancelled, c"True if cancel() was called."),
    Method::NoArgs(c"get_context", get_context, c"The context in which the callback runs."),
    Method::NoArgs(c"_run", run, c"Run the callback now, as asyncio.Handle._run does."),
    Method::NoArgs(c"_repr_info", repr_info, c"The parts of the repr, as asyncio.Handle has them."),
];

const fn attribute(name: &'static std::ffi::CStr, get: ffi::getter) -> Attribute {
    Attribute { name, get, set: None }
}

const ATTRIBUTES: [Attribute; 8] = [
    attribute(c"__class__", get_class),
    Attribute { name: c"_callback", get: get_callback, set: Some(set_callback) },
    Attribute { name: c"_args", get: get_arguments, set: Some(set_arguments) },
    attribute(c"_context", get_context_field),
    attribute(c"_loop", get_loop),
    attribute(c"_cancelled", get_cancelled),
    attribute(c"_repr", get_repr),
    Attribute { name: c"_source_traceback", get: get_source_traceback, set: Some(set_traceback) },
];

/// Makes the types. Called once, by the module's initialisation.
pub(crate) fn make_types(py: Python<'_>) -> PyResult<()> {
    let slots = [
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_repr, repr as *mut c_void),
        (ffi::Py_tp_richcompare, compare as *mut c_void),
        (ffi::Py_tp_hash, hash as *mut c_void),
    ];
    // What breaks a cycle is the loop's clear, which empties all its handles.
    let timer_slots = [
        (ffi::Py_tp_dealloc, timer_dealloc as *mut c_void),
        (ffi::Py_tp_traverse, timer_traverse as *mut c_void),
        (ffi::Py_tp_repr, repr as *mut c_void),
        (ffi::Py_tp_richcompare, compare as *mut c_void),
        (ffi::Py_tp_hash, hash as *mut c_void),
    ];
    let flags = ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION;
    let mut timer_attributes = Vec::from(ATTRIBUTES);
    timer_attributes.push(attribute(c"_when", get_when));
    timer_attributes.push(Attribute { name: c"_scheduled", get: get_scheduled, set: Some(set_scheduled) });
    let mut timer_methods = Vec::from(METHODS);
    timer_methods.push(Method::NoArgs(
        c"when",
        when,
        c"The deadline in seconds, on the clock of loop.time().",
    ));
    let handle = TypeSpec {
        name: c"wakeloop._core.Handle",
        size: size_of::<Handle>(),
        flags,
        methods: &METHODS,
        attributes: &ATTRIBUTES,
        weaklist_offset: Some(offset_of!(Handle, weaklist)),
        dict_offset: None,
        objects: &[],
        slots: &slots,
        bases: None,
    };
    let timer = TypeSpec {
        name: c"wakeloop._core.TimerHandle",
        size: size_of::<TimerHandle>(),
        flags: flags | ffi::Py_TPFLAGS_HAVE_GC,
        methods: &timer_methods,
        attributes: &timer_attributes,
        weaklist_offset: Some(offset_of!(Handle, weaklist)),
        dict_offset: None,
        objects: &[],
        slots: &timer_slots,
        bases: None,
    };
    let thread_safe = TypeSpec {
        name: c"wakeloop._core.ThreadSafeHandle",
        size: size_of::<ThreadSafeHandle>(),
        flags,
        methods: &METHODS,
        attributes: &ATTRIBUTES,
        weaklist_offset: Some(offset_of!(Handle, weaklist)),
        dict_offset: None,
        objects: &[],
        slots: &slots,
        bases: None,
    };
    // Relaxed: published under the GIL, read under the GIL.
    HANDLE_TYPE.store(handle.build(py)?, Ordering::Relaxed);
    THREAD_SAFE_TYPE.store(thread_safe.build(py)?, Ordering::Relaxed);
    TIMER_TYPE.store(timer.build(py)?, Ordering::Relaxed);
    Ok(())
}
