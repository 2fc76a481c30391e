//! `call_soon` and its kin: the loop's methods that run per callback, as fast functions.
//!
//! **No Handle for asyncio's own C code.** The Task and Future of `_asyncio` call
//! `loop.call_soon(callback[, argument], context=...)` and throw the Handle away. They always pass the very
//! same tuple of keyword names, which nobody else has; [`learn_c_caller`] finds it out at import by letting
//! a C task make one step on a stub loop. A call that carries that tuple is queued without a Handle. If the
//! probe finds nothing, everything takes the ordinary way.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::clock::monotonic;
use super::core::loop_clock;
use super::core::{Core, Entry, core_of};
use super::futures::new_future;
use super::handle::layout::{Deadline, Handle, HandleRef, Parts, ThreadSafeHandle, TimerHandle};
use crate::capi::call::{call, call_keywords, guard};
use crate::capi::context::context_for;
use crate::capi::error::raise_message;
use crate::capi::fallible::string;
use crate::capi::imports::{imports, support};
use crate::capi::types::Method;
use crate::capi::{Args, Raised, Ref};
use crate::compat::clock::NativeTiming;
use crate::compat::patches;

/// The tuple of keyword names that `_asyncio` passes to `call_soon`, or null.
static C_KEYWORDS: AtomicPtr<ffi::PyObject> = AtomicPtr::new(null_mut());

/// Remembers what [`probe`] saw.
pub(crate) fn learn_c_caller(py: Python<'_>) {
    // The probe is optional: whatever goes wrong in it, the ordinary way works.
    if let Err(error) = support(py, "probe_c_caller").and_then(|probe| {
        probe.call1((py.get_type::<Probe>(),))?;
        Ok(())
    }) {
        drop(error);
    }
}

/// The stub loop of the probe: a task's first `call_soon` lands here.
#[pyclass(module = "wakeloop._core", frozen)]
#[derive(Debug)]
pub(crate) struct Probe;

#[pymethods]
impl Probe {
    #[new]
    fn new() -> Probe {
        Probe
    }

    fn get_debug(&self) -> bool {
        false
    }
}

unsafe extern "C" fn probe(
    _object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the arguments of this very call.
    let arguments = unsafe { Args::new(values, count, names) };
    if arguments.keywords() == 1 && C_KEYWORDS.load(Ordering::Relaxed).is_null() {
        // Kept for ever, so that no other tuple can take its address. Relaxed: written under the GIL, once.
        // SAFETY: a live tuple.
        C_KEYWORDS.store(unsafe { Ref::from_borrowed(names) }.into_ptr(), Ordering::Relaxed);
    }
    Ref::none().into_ptr()
}

/// The probe's own method, added like the loop's.
pub(crate) const PROBE_METHODS: &[Method] = &[Method::Fast(c"call_soon", probe, c"Record the caller.")];

/// What debug mode checks and records, in asyncio's own words.
#[cold]
fn debug_call(
    core: &Core,
    callback: *mut ffi::PyObject,
    function: &str,
    thread: bool,
) -> Result<Ref, Raised> {
    // SAFETY: every caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    let check = support(py, "check_callback").map_err(|error| crate::capi::error::restore(py, error))?;
    let name = string(function)?;
    let thread = pyo3::types::PyBool::new(py, thread);
    call(&Ref::from(check), &[core.object(), callback, name.as_ptr(), thread.as_ptr()])
}

#[inline(always)]
fn soon(
    core: &Core,
    arguments: Args,
    function: &str,
    thread: bool,
    create: fn(Parts<'_>) -> Result<HandleRef, Raised>,
) -> Result<Ref, Raised> {
    let given = arguments.context(function)?;
    core.check_usable()?;
    let traceback =
        if core.is_debug() { Some(debug_call(core, arguments.at(0), function, thread)?) } else { None };
    let parts = Parts {
        event_loop: core.loop_ref(),
        // SAFETY: a borrowed argument of the running call.
        callback: unsafe { Ref::from_borrowed(arguments.at(0)) },
        arguments: arguments.rest(1),
        context: context_for(given)?,
    };
    let handle = create(parts)?;
    if traceback.is_some() {
        handle.set_source_traceback(traceback);
    }
    core.ready.push(Entry::Handle(handle.clone_ref()));
    core.wake_if_parked();
    Ok(handle.into_object())
}

unsafe extern "C" fn call_soon(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the method sits on our loop class; the arguments are those of this call.
    let (core, arguments) = unsafe { (core_of(object), Args::new(values, count, names)) };
    // Relaxed: written once at import, under the GIL.
    if !names.is_null()
        && names == C_KEYWORDS.load(Ordering::Relaxed)
        && matches!(arguments.len(), 1 | 2)
        && !core.instrumentation.is_active()
        && !core.is_closed()
        // `add_done_callback(callback, context=None)` passes the None on: a copy of the current one.
        // SAFETY: comparing with the address of `None`.
        && arguments.keyword_value(0) != unsafe { ffi::Py_None() }
    {
        // SAFETY: borrowed arguments of the running call; one or two positional ones and the context.
        let (callback, context) =
            unsafe { (Ref::from_borrowed(arguments.at(0)), Ref::from_borrowed(arguments.keyword_value(0))) };
        let argument = match arguments.len() {
            // SAFETY: as above.
            2 => Some(unsafe { Ref::from_borrowed(arguments.at(1)) }),
            _ => None,
        };
        return guard(move || {
            core.ready.push(Entry::Call { callback, argument, context });
            core.wake_if_parked();
            Ref::none().into_ptr()
        });
    }
    guard(|| {
        let handle = match arguments.len() {
            0 => by_keyword(object, arguments, "call_soon"),
            _ => soon(core, arguments, "call_soon", true, Handle::create),
        };
        handle.map_or(null_mut(), Ref::into_ptr)
    })
}

unsafe extern "C" fn call_soon_threadsafe(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as in `call_soon`.
    let (core, arguments) = unsafe { (core_of(object), Args::new(values, count, names)) };
    guard(|| {
        let handle = match arguments.len() {
            0 => by_keyword(object, arguments, "call_soon_threadsafe"),
            _ => {
                // Whether asyncio has such a handle: since 3.14.
                let create = match imports().has_thread_safe_handle {
                    true => ThreadSafeHandle::create,
                    false => Handle::create,
                };
                soon(core, arguments, "call_soon_threadsafe", false, create)
            }
        };
        if is_elsewhere(core) {
            core.gil.note_thread();
            if core.ready.len() > BACKLOG && handle.is_ok() {
                let_loop_run();
            }
        }
        handle.map_or(null_mut(), Ref::into_ptr)
    })
}

/// With so many callbacks waiting, who adds more from a thread gives up the GIL each time, as asyncio does always
/// by writing to its own pipe. Else threads that only add would have it most of the time, and the loop, which finds
/// more to do in each turn than in the one before, would come to its timers later and later.
const BACKLOG: usize = 16 * 1024;

#[cold]
fn let_loop_run() {
    // SAFETY: the caller holds the GIL, and nothing of the interpreter's is touched in between.
    unsafe {
        let state = ffi::PyEval_SaveThread();
        std::thread::yield_now();
        ffi::PyEval_RestoreThread(state);
    }
}

/// Does the loop run in another thread than this?
fn is_elsewhere(core: &Core) -> bool {
    // SAFETY: the number of the thread the loop runs in, if it runs; asking for one's own never fails.
    core.thread_id.get().is_some_and(|thread| unsafe {
        ffi::PyLong_CheckExact(thread.as_ptr()) != 0
            && ffi::PyLong_AsUnsignedLongMask(thread.as_ptr()) != ffi::PyThread_get_thread_ident()
    })
}

/// `now + delay`, by Python's own addition unless both are plain floats: what cannot be added raises what adding
/// raises, and a clock that counts in something else gives deadlines of its kind.
#[inline(always)]
fn deadline_after(core: &Core, custom: bool, delay: *mut ffi::PyObject) -> Result<Deadline, Raised> {
    // SAFETY: live objects throughout; owned results are wrapped at once.
    unsafe {
        if delay == ffi::Py_None() {
            raise_message(ffi::PyExc_TypeError, "delay must not be None");
            return Err(Raised);
        }
        let now = if custom {
            loop_clock::custom_time(core.object())?
        } else if ffi::PyFloat_CheckExact(delay) != 0 {
            return Ok(Deadline { seconds: monotonic() + ffi::PyFloat_AS_DOUBLE(delay), given: None });
        } else {
            Ref::from_owned(ffi::PyFloat_FromDouble(monotonic())).ok_or(Raised)?
        };
        let when = Ref::from_owned(ffi::PyNumber_Add(now.as_ptr(), delay)).ok_or(Raised)?;
        deadline(when.as_ptr())
    }
}

#[inline(always)]
fn seconds(value: *mut ffi::PyObject) -> Result<f64, Raised> {
    // SAFETY: a live object; -1 with an error set means failure.
    unsafe {
        let seconds = ffi::PyFloat_AsDouble(value);
        if seconds == -1.0 && !ffi::PyErr_Occurred().is_null() { Err(Raised) } else { Ok(seconds) }
    }
}

/// Debug mode speaks of `call_at` in both cases: in asyncio `call_later` is a call of that.
#[inline(always)]
fn at(core: &Core, when: Deadline, arguments: Args, function: &str) -> Result<Ref, Raised> {
    let given = arguments.context(function)?;
    core.check_usable()?;
    let traceback =
        if core.is_debug() { Some(debug_call(core, arguments.at(1), "call_at", true)?) } else { None };
    let parts = Parts {
        event_loop: core.loop_ref(),
        // SAFETY: a borrowed argument of the running call.
        callback: unsafe { Ref::from_borrowed(arguments.at(1)) },
        arguments: arguments.rest(2),
        context: context_for(given)?,
    };
    let seconds = when.seconds;
    let timer = TimerHandle::create(when, parts)?;
    if traceback.is_some() {
        timer.handle().set_source_traceback(traceback);
    }
    core.timers.insert(seconds, timer.clone_ref());
    core.wake_if_parked();
    Ok(timer.into_handle().into_object())
}

unsafe extern "C" fn call_later(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as in `call_soon`.
    let (core, arguments) = unsafe { (core_of(object), Args::new(values, count, names)) };
    guard(|| {
        let handle = match arguments.len() {
            0 | 1 => by_keyword(object, arguments, "call_later"),
            _ if core.clock.is_custom_timing(object) => custom_later(object, core, arguments),
            _ => deadline_after(core, false, arguments.at(0))
                .and_then(|when| at(core, when, arguments, "call_later")),
        };
        handle.map_or(null_mut(), Ref::into_ptr)
    })
}

/// Of a loop with another clock, or a `call_at` of somebody else's, who sees every timer there as on asyncio's.
#[cold]
fn custom_later(event_loop: *mut ffi::PyObject, core: &Core, arguments: Args) -> Result<Ref, Raised> {
    if !core.clock.has_custom_call_at() {
        let when = deadline_after(core, true, arguments.at(0))?;
        return at(core, when, arguments, "call_later");
    }
    // SAFETY: the GIL is held, as in every method.
    let py = unsafe { Python::assume_attached() };
    let callee = support(py, "later").map_err(|error| crate::capi::error::restore(py, error))?;
    pass_on(event_loop, &Ref::from(callee), &[], arguments)
}

unsafe extern "C" fn call_at(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as in `call_soon`.
    let (core, arguments) = unsafe { (core_of(object), Args::new(values, count, names)) };
    guard(|| {
        let handle = match arguments.len() {
            0 | 1 => by_keyword(object, arguments, "call_at"),
            _ => deadline(arguments.at(0)).and_then(|when| at(core, when, arguments, "call_at")),
        };
        handle.map_or(null_mut(), Ref::into_ptr)
    })
}

#[inline(always)]
fn deadline(when: *mut ffi::PyObject) -> Result<Deadline, Raised> {
    // SAFETY: a live object; `None` is compared by address, and a static of the interpreter is read.
    unsafe {
        if when == ffi::Py_None() {
            raise_message(ffi::PyExc_TypeError, "when cannot be None");
            return Err(Raised);
        }
        let seconds = seconds(when)?;
        let given = (ffi::PyFloat_CheckExact(when) == 0).then(|| Ref::from_borrowed(when));
        Ok(Deadline { seconds, given })
    }
}

/// A call that names what it usually does not, such as `call_soon(callback=f)`: put in order by Python.
#[cold]
fn by_keyword(event_loop: *mut ffi::PyObject, arguments: Args, function: &str) -> Result<Ref, Raised> {
    // SAFETY: the GIL is held, as in every method.
    let py = unsafe { Python::assume_attached() };
    let function = string(function)?;
    let callee = support(py, "by_keyword").map_err(|error| crate::capi::error::restore(py, error))?;
    pass_on(event_loop, &Ref::from(callee), &[function.as_ptr()], arguments)
}

/// Calls `callee(loop, *first, *args, **kwargs)`.
#[cold]
fn pass_on(
    event_loop: *mut ffi::PyObject,
    callee: &Ref,
    first: &[*mut ffi::PyObject],
    arguments: Args,
) -> Result<Ref, Raised> {
    let mut stack = vec![event_loop];
    stack.extend_from_slice(first);
    stack.extend_from_slice(arguments.rest(0));
    let positional = stack.len();
    stack.extend((0..arguments.keywords()).map(|index| arguments.keyword_value(index)));
    // The receiver is the callee's first argument; a spare slot stands in front of it.
    stack.insert(0, null_mut());
    // SAFETY: the positional values, then one value per name, behind the spare slot.
    unsafe { call_keywords(callee, stack.as_mut_ptr().add(1), positional, arguments.names()) }
}

unsafe extern "C" fn time(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the method sits on our loop class.
    if unsafe { core_of(object) }.custom_clock() {
        return guard(|| python_clock().map_or(null_mut(), Ref::into_ptr));
    }
    // SAFETY: an owned float or null with an error.
    unsafe { ffi::PyFloat_FromDouble(monotonic()) }
}

/// What `time.monotonic` says, which somebody may have replaced.
#[cold]
fn python_clock() -> Result<Ref, Raised> {
    // SAFETY: the GIL is held, as in every method.
    let py = unsafe { Python::assume_attached() };
    let clock = support(py, "clock").map_err(|error| crate::capi::error::restore(py, error))?;
    call(&Ref::from(clock), &[])
}

unsafe extern "C" fn get_debug(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the method sits on our loop class.
    unsafe { ffi::PyBool_FromLong(core_of(object).is_debug().into()) }
}

unsafe extern "C" fn is_closed(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the method sits on our loop class.
    unsafe { ffi::PyBool_FromLong(core_of(object).is_closed().into()) }
}

unsafe extern "C" fn is_running(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the method sits on our loop class.
    unsafe { ffi::PyBool_FromLong((!core_of(object).thread_id.is_empty()).into()) }
}

unsafe extern "C" fn stop(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the method sits on our loop class.
    unsafe { core_of(object) }.state.set_stopping(true);
    Ref::none().into_ptr()
}

unsafe extern "C" fn create_future(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| new_future(object).map_or(null_mut(), Ref::into_ptr))
}

/// `create_task`: the C Task at once in the plain case; debug mode, a task factory, a closed loop and any
/// keyword but `name` and `context` are asyncio's own function's business, or that of whoever took its place.
unsafe extern "C" fn create_task(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: as in `call_soon`.
    let (core, arguments) = unsafe { (core_of(object), Args::new(values, count, names)) };
    guard(|| {
        let plain = arguments.len() == 1
            && core.task_factory.is_empty()
            && !core.instrumentation.is_active()
            && !core.is_closed();
        match plain.then(|| task_keywords(arguments)).flatten() {
            Some([name, context]) => new_task(object, arguments.at(0), name, context),
            None => patches::create_task().and_then(|function| pass_on(object, &function, &[], arguments)),
        }
        .map_or(null_mut(), Ref::into_ptr)
    })
}

/// The values of `name` and `context`, `None` where absent; nothing if there is any other keyword.
#[inline(always)]
fn task_keywords(arguments: Args) -> Option<[*mut ffi::PyObject; 2]> {
    // SAFETY: the address of `None`.
    let mut found = [unsafe { ffi::Py_None() }; 2];
    for index in 0..arguments.keywords() {
        let name = arguments.keyword_name(index);
        let place = [&imports().name, &imports().context].iter().position(|known| known.as_ptr() == name)?;
        found[place] = arguments.keyword_value(index);
    }
    Some(found)
}

fn new_task(
    event_loop: *mut ffi::PyObject,
    coroutine: *mut ffi::PyObject,
    name: *mut ffi::PyObject,
    context: *mut ffi::PyObject,
) -> Result<Ref, Raised> {
    let names = imports();
    let task = patches::task_class()?;
    let mut stack = [null_mut(), coroutine, event_loop, name, context];
    // SAFETY: one positional and three keyword arguments, whose names are in the tuple.
    unsafe { call_keywords(&task, stack.as_mut_ptr().add(1), 1, names.task_keywords.as_ptr()) }
}

/// The native methods, by which [`clock`](crate::compat::clock) tells them from overrides.
pub(crate) fn native_timing() -> NativeTiming {
    NativeTiming { time: time as *const () as usize, call_at: call_at as *const () as usize }
}

/// What is put on the loop class.
pub(crate) const METHODS: &[Method] = &[
    Method::Fast(
        c"call_soon",
        call_soon,
        c"call_soon(callback, *args, context=None)\n\nCall the callback in the next turn. Returns a Handle. First in, first out.",
    ),
    Method::Fast(
        c"call_soon_threadsafe",
        call_soon_threadsafe,
        c"call_soon_threadsafe(callback, *args, context=None)\n\nAs call_soon, from any thread: wakes the loop if it sleeps.",
    ),
    Method::Fast(
        c"call_later",
        call_later,
        c"call_later(delay, callback, *args, context=None)\n\nCall the callback after delay seconds, never earlier. Returns a TimerHandle.",
    ),
    Method::Fast(
        c"call_at",
        call_at,
        c"call_at(when, callback, *args, context=None)\n\nCall the callback when loop.time() has reached when. Returns a TimerHandle.",
    ),
    Method::NoArgs(c"time", time, c"Seconds on the monotonic clock, as a float."),
    Method::NoArgs(c"get_debug", get_debug, c"True in debug mode."),
    Method::NoArgs(c"is_closed", is_closed, c"True once the loop was closed."),
    Method::NoArgs(c"is_running", is_running, c"True while run_forever is active."),
    Method::NoArgs(c"stop", stop, c"Leave run_forever at the end of this turn."),
    Method::Fast(
        c"create_task",
        create_task,
        c"create_task(coro, *, name=None, context=None, **kwargs)\n\nRun a coroutine as a task of this loop.",
    ),
    Method::NoArgs(c"create_future", create_future, c"A new asyncio.Future of this loop."),
];
