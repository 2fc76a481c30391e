//! Native objects that a task steps as it steps a coroutine.
//!
//! Such an object has `send`, `throw`, `close` and `__await__`, so that tasks, `wait_for` and `create_task` take
//! it, and `am_send`, by which the C task steps it without a StopIteration. What differs from type to type is one
//! step and how to give up: the trait [`Steps`].

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::call::guard;
use super::error::{raise, raise_message, take_exception, warn};
use super::fallible::string;
use super::future::set_blocking;
use super::object::interpreter_ends;
use super::stop::end_await;
use super::types::{Attribute, Method, TypeSpec, visit_instance};
use super::{Args, Raised, Ref, Slot};

/// What one step came to.
#[derive(Debug)]
pub(crate) enum Step {
    /// The end, with this result.
    Done(Ref),
    /// The task has to wait for this future.
    Wait(Ref),
    /// The task goes on in the next turn of its loop, as after `asyncio.sleep(0)`.
    Yield,
}

/// # Safety
/// The type is `repr(C)` and begins with its `PyObject`, so that a pointer to the one is a pointer to the other.
pub(crate) unsafe trait Steps {
    /// Goes on as far as it can.
    fn step(&self) -> Result<Step, Raised>;

    /// Nobody waits any more: lets everything go. May be called more than once.
    fn finish(&self);

    /// The references that the collector has to know of.
    fn held(&self) -> impl Iterator<Item = &Slot>;

    /// The collector breaks a cycle.
    fn clear(&self) {
        self.finish();
    }
}

/// What has a name, as a coroutine has its function's: in the repr of tasks, and in the warning below.
///
/// # Safety
/// As of [`Steps`].
pub(crate) unsafe trait Named {
    /// With its class, as in `TcpStream.read`.
    fn name(&self) -> &'static str;
}

unsafe extern "C" fn get_qualname<T: Named>(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: the attribute sits on T, and the trait's word.
    let named = unsafe { &*object.cast::<T>() };
    string(named.name()).map_or(null_mut(), Ref::into_ptr)
}

unsafe extern "C" fn get_name<T: Named>(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: as above.
    let name = unsafe { &*object.cast::<T>() }.name();
    string(name.split_once('.').map_or(name, |(_, name)| name)).map_or(null_mut(), Ref::into_ptr)
}

/// The attributes of a type that is named.
pub(crate) const fn names<T: Named>() -> [Attribute; 2] {
    [
        Attribute { name: c"__qualname__", get: get_qualname::<T>, set: None },
        Attribute { name: c"__name__", get: get_name::<T>, set: None },
    ]
}

/// A coroutine that nobody has awaited is most often a mistake, and Python says so. Called by its dealloc.
#[cold]
pub(crate) fn warn_never_awaited(object: *mut ffi::PyObject, name: &str) {
    if interpreter_ends() {
        return;
    }
    // Not of the object itself if the warning fails: it is as good as gone.
    // SAFETY: reading a static of the interpreter; the type of a live object.
    let (category, source) = unsafe { (ffi::PyExc_RuntimeWarning, ffi::Py_TYPE(object).cast()) };
    warn(category, &format!("coroutine '{name}' was never awaited"), source);
}

/// # Safety
/// `object` is a `T` and outlives the result.
unsafe fn of<'a, T: Steps>(object: *mut ffi::PyObject) -> &'a T {
    // SAFETY: the caller's word and the trait's; types with steps keep their state in cells.
    unsafe { &*object.cast() }
}

/// `am_send`: what the C task calls. Returns without raising StopIteration.
unsafe extern "C" fn am_send<T: Steps>(
    object: *mut ffi::PyObject,
    _value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let mut outcome = ffi::PySendResult::PYGEN_ERROR;
    let value = guard(|| {
        // SAFETY: the slot belongs to T.
        let steps = unsafe { of::<T>(object) };
        match steps.step() {
            Ok(Step::Done(value)) => {
                outcome = ffi::PySendResult::PYGEN_RETURN;
                value.into_ptr()
            }
            Ok(Step::Wait(future)) => match set_blocking(&future) {
                Ok(()) => {
                    outcome = ffi::PySendResult::PYGEN_NEXT;
                    future.into_ptr()
                }
                Err(Raised) => fail(steps),
            },
            Ok(Step::Yield) => {
                outcome = ffi::PySendResult::PYGEN_NEXT;
                Ref::none().into_ptr()
            }
            Err(Raised) => fail(steps),
        }
    });
    // SAFETY: the caller's place for the result.
    unsafe { *result = value };
    outcome
}

/// Ends on the error that is set, and leaves it set. No coroutine raises StopIteration: it would look like an end
/// with a result, and becomes what a generator makes of it.
#[cold]
fn fail<T: Steps>(steps: &T) -> *mut ffi::PyObject {
    let mut exception = take_exception();
    steps.finish();
    // SAFETY: live objects; both setters take over the reference they are given.
    unsafe {
        if ffi::PyErr_GivenExceptionMatches(exception.as_ptr(), ffi::PyExc_StopIteration) != 0 {
            raise_message(ffi::PyExc_RuntimeError, "coroutine raised StopIteration");
            let outer = take_exception();
            ffi::PyException_SetCause(outer.as_ptr(), exception.clone_ref().into_ptr());
            ffi::PyException_SetContext(outer.as_ptr(), exception.into_ptr());
            exception = outer;
        }
    }
    raise(exception);
    null_mut()
}

/// `tp_iternext`: the same for an `await` of a coroutine, which wants StopIteration.
unsafe extern "C" fn next<T: Steps>(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let mut result = null_mut();
    // SAFETY: a T and a place for the result.
    match unsafe { am_send::<T>(object, ffi::Py_None(), &mut result) } {
        // SAFETY: a result that is ours.
        ffi::PySendResult::PYGEN_RETURN => unsafe { end_await(result) },
        _ => result,
    }
}

/// The StopIteration that ends a coroutine which is driven by `send`; null.
///
/// # Safety
/// `result` is an owned reference or null.
pub(crate) unsafe fn raise_stop(result: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the caller's word; the exception takes a reference of its own.
    unsafe {
        let value = Ref::from_owned(result).unwrap_or_else(Ref::none);
        let stop = ffi::PyObject_CallOneArg(ffi::PyExc_StopIteration, value.as_ptr());
        if let Some(stop) = Ref::from_owned(stop) {
            raise(stop);
        }
    }
    null_mut()
}

unsafe extern "C" fn send<T: Steps>(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let mut result = null_mut();
    // SAFETY: the method sits on T; a place for the result.
    match unsafe { am_send::<T>(object, value, &mut result) } {
        // SAFETY: a result that is ours.
        ffi::PySendResult::PYGEN_RETURN => unsafe { raise_stop(result) },
        _ => result,
    }
}

/// Is it something that `throw(type[, value[, traceback]])` can raise? If not, a coroutine stays as it is.
pub(crate) fn check_given(arguments: Args) -> Result<(), Raised> {
    arguments.at_least(1, "throw", "type")?;
    let kind = arguments.at(0);
    // SAFETY: live objects; reading statics of the interpreter.
    unsafe {
        let given = |index: usize| arguments.rest(index).first().filter(|it| **it != ffi::Py_None());
        let text = if given(2).is_some_and(|trace| ffi::PyTraceBack_Check(*trace) == 0) {
            "throw() third argument must be a traceback object".to_owned()
        } else if ffi::PyExceptionInstance_Check(kind) != 0 {
            if given(1).is_none() {
                return Ok(());
            }
            "instance exception may not have a separate value".to_owned()
        } else if ffi::PyExceptionClass_Check(kind) != 0 {
            return Ok(());
        } else {
            let name = CStr::from_ptr((*ffi::Py_TYPE(kind)).tp_name).to_string_lossy();
            format!("exceptions must be classes or instances deriving from BaseException, not {name}")
        };
        raise_message(ffi::PyExc_TypeError, &text);
    }
    Err(Raised)
}

/// Sets the exception that `throw` was given, for which [`check_given`] holds.
pub(crate) fn raise_given(arguments: Args) {
    let (kind, value) = (arguments.at(0), arguments.rest(1).first().copied());
    // SAFETY: live objects; a class is called to make its exception, as the generator's throw does.
    unsafe {
        let given = value.filter(|value| *value != ffi::Py_None());
        match given {
            Some(value) if ffi::PyExceptionInstance_Check(value) != 0 => raise(Ref::from_borrowed(value)),
            Some(value) => ffi::PyErr_SetObject(kind, value),
            None if ffi::PyExceptionInstance_Check(kind) != 0 => raise(Ref::from_borrowed(kind)),
            None => ffi::PyErr_SetNone(kind),
        }
    }
}

/// `throw(type[, value[, traceback]])`: ends the wait and raises.
unsafe extern "C" fn throw<T: Steps>(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method sits on T; the arguments are those of this call.
        let (steps, arguments) = unsafe { (of::<T>(object), Args::new(values, count, names)) };
        if check_given(arguments).is_err() {
            return null_mut();
        }
        steps.finish();
        raise_given(arguments);
        null_mut()
    })
}

unsafe extern "C" fn close<T: Steps>(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method sits on T.
        unsafe { of::<T>(object) }.finish();
        Ref::none().into_ptr()
    })
}

/// `__await__` and `__iter__`.
pub(crate) unsafe extern "C" fn itself(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a live object.
    unsafe { Ref::from_borrowed(object) }.into_ptr()
}

unsafe extern "C" fn traverse<T: Steps>(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the collector's call for a T; a heap type is visited by its instances.
    unsafe { visit_instance(object, of::<T>(object).held(), visit, argument) }
}

unsafe extern "C" fn clear<T: Steps>(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector's call for a T.
    unsafe { of::<T>(object) }.clear();
    0
}

const fn methods<T: Steps>() -> [Method; 3] {
    [
        Method::OneArg(c"send", send::<T>, c"Take one step, as a coroutine's send does."),
        Method::Fast(c"throw", throw::<T>, c"End the wait and raise, as a coroutine's throw does."),
        Method::NoArgs(c"close", close::<T>, c"End the wait."),
    ]
}

/// Makes the type of T, which lives for ever. `dealloc` is its own, as are the attributes and the slots in `more`.
pub(crate) fn make_type<T: Steps>(
    py: Python<'_>,
    name: &'static CStr,
    dealloc: ffi::destructor,
    weaklist_offset: Option<usize>,
    attributes: &[Attribute],
    more: &[(c_int, *mut c_void)],
) -> PyResult<*mut ffi::PyTypeObject> {
    let mut slots = vec![
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_traverse, traverse::<T> as *mut c_void),
        (ffi::Py_tp_clear, clear::<T> as *mut c_void),
        (ffi::Py_am_await, itself as *mut c_void),
        (ffi::Py_am_send, am_send::<T> as *mut c_void),
        (ffi::Py_tp_iter, itself as *mut c_void),
        (ffi::Py_tp_iternext, next::<T> as *mut c_void),
    ];
    slots.extend_from_slice(more);
    TypeSpec {
        name,
        size: size_of::<T>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION,
        methods: &methods::<T>(),
        attributes,
        weaklist_offset,
        dict_offset: None,
        objects: &[],
        slots: &slots,
        bases: None,
    }
    .build(py)
}
