//! The loop's methods that run per callback: `call_soon`, `call_later`, `call_at`, `create_task` and the like.
//!
//! **No Handle for asyncio's own C code.** The Task and Future of `_asyncio` call `loop.call_soon(callback[, argument],
//! context=...)` and drop the Handle that it returns. They always pass the same tuple object of keyword names, and no
//! other caller has that object. [`init_c_caller`] finds the tuple at import: it creates a C task on a stub loop, whose
//! `call_soon` records the tuple. A call with this tuple is queued without a Handle. If the tuple was not found, every
//! call makes a Handle.
//!
//! **Patches.** While asyncio's version of a method is patched, the patch is in the place of the native method
//! (`_loop/inheritance.py`), so nothing is asked here. Only between two runs, and in `call_later` and `call_at`, a
//! native method may be the first to notice. Then it calls the patch.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;

use super::event_loop::add_watch;
use crate::capi::arguments::refused;
use crate::capi::class::ClassSpec;
use crate::capi::error::{no_memory, unless_raised};
use crate::capi::fallible::string;
use crate::capi::imports::{imports, support};
use crate::capi::inspect::{boolean, float, not_implemented};
use crate::capi::methods::{Method, TypeSlot};
use crate::capi::native::{self, Dealloc, This, native_class};
use crate::capi::recycle::context::context_for;
use crate::capi::shared::never_count;
use crate::capi::{Arguments, Borrowed, Exception, Raised, Ref};
use crate::clock::monotonic;
use crate::compat::clock::NativeTiming;
use crate::compat::patches;
use crate::compat::version::CREATE_TASK_TAKES_EAGER_START;
use crate::kernel::core::inbox::THROUGH_INBOX;
use crate::kernel::core::loop_clock::custom_time;
use crate::kernel::core::loop_ref::LoopRef;
use crate::kernel::core::watched_fd::Direction;
use crate::kernel::core::{Core, Entry, closed};
use crate::kernel::futures::new_future;
use crate::kernel::handle::layout::{Deadline, Handle, HandleRef, Parts, ThreadSafeHandle, TimerHandle};
use crate::kernel::support::call_support;
use crate::kernel::turn::take_calls;

type Loop<'a> = This<'a, Core>;

/// How many timers of a loop that does not run the collector sees from the beginning. It looks at each of them again and
/// again, which is a third of what many timers cost.
const MOST_TRACKED: usize = 100;

// -- calls from C

/// The tuple of keyword names that `_asyncio` passes to `call_soon`, or null.
static C_KEYWORDS: AtomicPtr<ffi::PyObject> = AtomicPtr::new(null_mut());

/// The stub loop of the probe, on which a C task calls `call_soon`.
#[derive(Debug)]
struct Probe;

// `init_c_caller` builds the class and makes the only instance.
native_class!(unsafe Probe, collected false);

impl Dealloc for Probe {}

/// Runs the probe. Called once, after the package's Python modules were imported. An error does not matter, because the
/// tuple is needed only for speed.
pub(crate) fn init_c_caller(py: Python<'_>) -> PyResult<()> {
    ClassSpec::<Probe>::new(c"wakeloop._core.Probe")
        .methods(&[
            Method::fast(c"call_soon", note_caller, c"Record the caller."),
            Method::no_args(c"get_debug", |_: This<'_, Probe>| false, c"False."),
        ])
        .slots(&[TypeSlot::dealloc()])
        .build(py)?;
    let probe = native::create(Probe)?;
    // Instances of these classes are made and dropped for each task, future and `await`.
    if let Some(classes) = unless_raised(call_support(py, "probe_c_caller", &[probe.borrow()])) {
        classes.tuple_items().unwrap_or_default().iter().for_each(|class| never_count(class));
    }
    Ok(())
}

fn note_caller(_: This<'_, Probe>, arguments: Arguments<'_>) {
    if let Some(names) = arguments.names()
        && arguments.keywords() == 1
        && C_KEYWORDS.load(Ordering::Relaxed).is_null()
    {
        // Never dropped, so that no other tuple can get its address. Relaxed: written once, at import.
        C_KEYWORDS.store(names.to_owned().into_ptr(), Ordering::Relaxed);
        // Of the class of a task's step, which is this callback, the interpreter makes an instance for each step.
        if let Some(callback) = arguments.get(0) {
            // SAFETY: the class of a live object.
            let class = unsafe { Borrowed::from_ptr(callback.kind().cast()) };
            never_count(&class);
        }
    }
}

/// The callback, the argument and the context, if this is a call from `_asyncio`'s C code.
#[inline(always)]
fn c_call<'a>(
    core: &Core,
    arguments: Arguments<'a>,
) -> Option<(Borrowed<'a>, Option<Borrowed<'a>>, Borrowed<'a>)> {
    // Relaxed: written once, at import. The tuple belongs to the module `_asyncio`, and is the same one in every thread.
    if arguments.names()?.as_ptr() != C_KEYWORDS.load(Ordering::Relaxed) || is_exceptional(core) {
        return None;
    }
    let (callback, argument, context) = match *arguments.values() {
        [callback, context] => (callback, None, context),
        [callback, argument, context] => (callback, Some(argument), context),
        _ => return None,
    };
    // With `add_done_callback(callback, context=None)` the context is None, which means a copy of the current one.
    (!context.is_none()).then_some((callback, argument, context))
}

/// Is the loop closed, or must a method that schedules callbacks look for debug mode and for patches? Patches are
/// noticed here between two runs.
#[inline(always)]
fn is_exceptional(core: &Core) -> bool {
    core.instrumentation.is_attentive() && (needs_look(core) || core.is_closed())
}

/// Must a method that schedules callbacks look for debug mode and for patches?
#[inline(always)]
fn needs_look(core: &Core) -> bool {
    core.instrumentation.is_active() || core.is_changed_between_runs()
}

/// Must a method that schedules callbacks look for debug mode and for patches? An error if the loop is closed.
#[inline(always)]
fn check(core: &Core) -> Result<bool, Raised> {
    if !core.instrumentation.is_attentive() {
        return Ok(false);
    }
    // A look may run Python code, and the loop's own thread may close the loop meanwhile.
    let looks = needs_look(core);
    core.check_usable()?;
    Ok(looks)
}

/// The method that is now in the place of `name`, if patches were noticed between two runs.
#[cold]
fn replacement(core: &Core, name: &str) -> Result<Option<Ref>, Raised> {
    if core.is_changed_between_runs() { patched(core, name) } else { Ok(None) }
}

/// The method that is now in the place of `name`, if this call is the first that notices a patch, in a run or between
/// two. For methods that need the time anyway, or that make a system call.
#[inline(always)]
fn noticed_patch(core: &Core, name: &str) -> Result<Option<Ref>, Raised> {
    if core.clock.has_changed(&core.borrow()) { patched(core, name) } else { Ok(None) }
}

#[cold]
fn patched(core: &Core, name: &str) -> Result<Option<Ref>, Raised> {
    core.clock.take_changed().map(|class| class.getattr(&string(name)?)).transpose()
}

// -- call_soon

/// Makes the checks of debug mode, with asyncio's errors. Returns the stack of the caller.
#[cold]
fn debug_call(
    core: &Core,
    callback: Borrowed<'_>,
    function: &str,
    check_thread: bool,
) -> Result<Ref, Raised> {
    let (function, check_thread) = (string(function)?, boolean(check_thread));
    let arguments = [core.borrow(), callback, function.borrow(), check_thread.borrow()];
    call_support(callback.py(), "check_callback", &arguments)
}

#[inline(always)]
fn soon(
    core: &Core,
    callback: Borrowed<'_>,
    arguments: Arguments<'_>,
    function: &str,
    check_thread: bool,
    create: fn(Parts<'_>) -> Result<HandleRef, Raised>,
) -> Result<Ref, Raised> {
    let context = arguments.context(function)?;
    let mut traceback = None;
    if check(core)? {
        if let Some(replacement) = replacement(core, function)? {
            return replacement.pass_on(&[core.borrow()], arguments);
        }
        if core.is_debug() {
            traceback = Some(debug_call(core, callback, function, check_thread)?);
            // That has run Python code, and the loop's own thread may have closed the loop meanwhile. A callback that
            // is pushed now would neither run nor be dropped.
            core.check_usable()?;
        }
    }
    let handle = create(Parts {
        event_loop: core.loop_ref(),
        callback: callback.to_owned(),
        arguments: arguments.rest(1),
        context: context_for(context)?,
    })?;
    if traceback.is_some() {
        handle.set_source_traceback(traceback);
    }
    take_calls(core);
    core.ready.try_reserve().map_err(|_| no_memory())?;
    core.ready.push(Entry::Handle(handle.clone_ref()));
    core.wake_if_parked();
    Ok(handle.into_object())
}

fn call_soon(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    if let Some((callback, argument, context)) = c_call(&core, arguments) {
        take_calls(&core);
        core.ready.push(Entry::Call {
            callback: callback.to_owned(),
            argument: argument.map(Borrowed::to_owned),
            context: context.to_owned(),
        });
        core.wake_if_parked();
        return Ok(Ref::none());
    }
    match arguments.get(0) {
        None => by_keyword(core, arguments, "call_soon"),
        Some(callback) => soon(&core, callback, arguments, "call_soon", true, Handle::create),
    }
}

/// Called outside of a section of the loop.
fn call_soon_threadsafe(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    if THROUGH_INBOX
        && core.inbox.runs_elsewhere()
        && let Some(callback) = arguments.get(0)
    {
        return send_soon(core, callback, arguments);
    }
    core.object().hold(|| queue_soon(core, arguments))
}

/// Sends a thread-safe handle to a loop that runs in another thread.
#[inline(never)]
fn send_soon(core: Loop<'_>, callback: Borrowed<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let parts = Parts {
        // SAFETY: the object is an instance of our loop class.
        event_loop: unsafe { LoopRef::new(core.object().to_owned()) },
        callback: callback.to_owned(),
        arguments: arguments.rest(1),
        context: context_for(arguments.context("call_soon_threadsafe")?)?,
    };
    let handle = thread_safe_handle()(parts)?.into_object();
    let sent = handle.bind(core.py()).unbind();
    match core.inbox.send_call(sent) {
        None => Err(closed()),
        Some(waiting) => {
            if waiting > BACKLOG {
                wait_for_turn(core, waiting);
            }
            Ok(handle)
        }
    }
}

/// Holds a thread back that sends callbacks faster than the loop takes them: for as long as the loop needs for one of its
/// turns, but not for ever, because the callback that runs may wait for this thread.
#[cold]
fn wait_for_turn(core: Loop<'_>, waiting: usize) {
    let inbox = core.inbox.clone();
    core.py().detach(|| {
        let mut pause = Duration::from_micros(50);
        while pause < LONGEST_WAIT && inbox.waiting_calls() >= waiting {
            std::thread::sleep(pause);
            pause *= 2;
        }
    });
}

/// The longest pause of a thread that is held back.
const LONGEST_WAIT: Duration = Duration::from_millis(10);

/// asyncio has thread-safe handles since 3.14.
#[inline(always)]
fn thread_safe_handle() -> fn(Parts<'_>) -> Result<HandleRef, Raised> {
    if imports().has_thread_safe_handle { ThreadSafeHandle::create } else { Handle::create }
}

#[inline(always)]
fn queue_soon(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let handle = match arguments.get(0) {
        None => by_keyword(core, arguments, "call_soon_threadsafe"),
        Some(callback) => {
            soon(&core, callback, arguments, "call_soon_threadsafe", false, thread_safe_handle())
        }
    };
    if core.runs_in_another_thread() {
        core.gil.note_thread();
        if core.ready.len() > BACKLOG && handle.is_ok() {
            yield_gil(core.py());
        }
    }
    handle
}

/// If more callbacks than this are waiting, `call_soon_threadsafe` lets the loop run for a moment. asyncio's always
/// does, because it writes to the self-pipe. Otherwise threads that only add callbacks could hold the GIL most of the
/// time, so that each turn of the loop has more callbacks than the one before and timers run later and later.
const BACKLOG: usize = 16 * 1024;

#[cold]
fn yield_gil(py: Python<'_>) {
    py.detach(std::thread::yield_now);
}

// -- timers

/// `now + delay`. It is Python's addition unless both are plain numbers. So a wrong delay raises the error of the
/// addition, and a custom clock may use a number type of its own.
#[inline(always)]
fn deadline_after(core: &Core, custom: bool, delay: Borrowed<'_>) -> Result<Deadline, Raised> {
    if delay.is_none() {
        return Err(Exception::TypeError.raise("delay must not be None"));
    }
    let now = if custom {
        custom_time(&core.borrow())?
    } else if let Some(delay) = delay.exact_float().or_else(|| delay.exact_int().map(|whole| whole as f64)) {
        return Ok(Deadline { seconds: monotonic() + delay, given: None });
    } else {
        float(monotonic())?
    };
    deadline(now.plus(&delay)?.borrow())
}

#[inline(always)]
fn deadline(when: Borrowed<'_>) -> Result<Deadline, Raised> {
    if when.is_none() {
        return Err(Exception::TypeError.raise("when cannot be None"));
    }
    match when.exact_float() {
        Some(seconds) => Ok(Deadline { seconds, given: None }),
        None => Ok(Deadline { seconds: when.to_float_or_infinity()?, given: Some(when.to_owned()) }),
    }
}

/// Schedules a callback. Wrong keywords are refused before a wrong time, as in asyncio. The errors of debug mode name
/// `call_at` also for `call_later`, because asyncio's `call_later` calls `call_at`.
#[inline(always)]
fn at(
    core: &Core,
    when: impl FnOnce() -> Result<Deadline, Raised>,
    callback: Borrowed<'_>,
    arguments: Arguments<'_>,
    function: &str,
) -> Result<Ref, Raised> {
    let context = arguments.context(function)?;
    let when = when()?;
    let mut traceback = None;
    if check(core)? {
        if let Some(replacement) = replacement(core, function)? {
            return replacement.pass_on(&[core.borrow()], arguments);
        }
        if core.is_debug() {
            traceback = Some(debug_call(core, callback, "call_at", true)?);
            core.check_usable()?;
        }
    }
    let seconds = when.seconds;
    let timer = TimerHandle::create(
        when,
        Parts {
            event_loop: core.loop_ref(),
            callback: callback.to_owned(),
            arguments: arguments.rest(2),
            context: context_for(context)?,
        },
    )?;
    if traceback.is_some() {
        timer.handle().set_source_traceback(traceback);
    }
    core.timers.insert(seconds, timer.clone_ref()).map_err(|_| no_memory())?;
    if !core.is_running() && core.timers.len() <= MOST_TRACKED {
        // The loop may become garbage together with the caller that keeps the handle.
        timer.track_shared();
    }
    core.wake_if_parked();
    Ok(timer.into_handle().into_object())
}

fn call_later(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let [delay, callback, ..] = *arguments.rest(0) else {
        return by_keyword(core, arguments, "call_later");
    };
    if let Some(patched) = noticed_patch(&core, "call_later")? {
        return patched.pass_on(&[core.object()], arguments);
    }
    if core.clock.is_custom_timing(&core.object()) {
        return custom_later(core, delay, callback, arguments);
    }
    at(&core, || deadline_after(&core, false, delay), callback, arguments, "call_later")
}

/// `call_later` on a loop with a custom clock, or with an overridden `call_at`, which has to be called for every timer
/// as on asyncio's loop.
#[cold]
fn custom_later(
    core: Loop<'_>,
    delay: Borrowed<'_>,
    callback: Borrowed<'_>,
    arguments: Arguments<'_>,
) -> Result<Ref, Raised> {
    if !core.clock.has_custom_call_at() {
        return at(&core, || deadline_after(&core, true, delay), callback, arguments, "call_later");
    }
    support_function(core, "later")?.pass_on(&[core.object()], arguments)
}

fn call_at(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let [when, callback, ..] = *arguments.rest(0) else {
        return by_keyword(core, arguments, "call_at");
    };
    if let Some(patched) = noticed_patch(&core, "call_at")? {
        return patched.pass_on(&[core.object()], arguments);
    }
    at(&core, || deadline(when), callback, arguments, "call_at")
}

fn time(core: Loop<'_>) -> Result<Ref, Raised> {
    if core.clock.is_custom(&core.object()) { asyncios_time(core) } else { float(monotonic()) }
}

/// The time of asyncio's own method, which calls `time.monotonic`. The program has replaced one of them.
#[cold]
fn asyncios_time(core: Loop<'_>) -> Result<Ref, Raised> {
    imports().selector_event_loop.getattr(&imports().time)?.call(&[core.object()])
}

// -- calls that are implemented in Python

fn support_function(core: Loop<'_>, function: &str) -> Result<Ref, Raised> {
    Ok(Ref::from(support(core.py(), function)?))
}

/// A call with positional parameters given as keywords, such as `call_soon(callback=f)`. Python code binds them.
#[cold]
fn by_keyword(core: Loop<'_>, arguments: Arguments<'_>, function: &str) -> Result<Ref, Raised> {
    let name = string(function)?;
    let called = support_function(core, "by_keyword")?.pass_on(&[core.object(), name.borrow()], arguments)?;
    if called.is(&not_implemented()) {
        return Err(refused(function, "misses arguments"));
    }
    Ok(called)
}

// -- tasks and futures

/// `create_task`. In the common case it creates the C Task directly. In debug mode, with a task factory, on a closed
/// loop and for keywords that [`task_keywords`] does not know, asyncio's function does the work, or the patch that
/// replaces it. No other Python function may be in between: in debug mode asyncio removes the innermost frame from the
/// traceback of the task's creation, and expects it to be its own.
fn create_task(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    if let &[coroutine] = arguments.rest(0)
        && core.task_factory.is_empty()
        && !is_exceptional(&core)
        && let Some(keywords) = task_keywords(arguments)
    {
        return new_task(core, coroutine, keywords);
    }
    let create_task = match replacement(&core, "create_task")? {
        Some(replacement) => replacement,
        None => imports().selector_event_loop.getattr(&imports().create_task)?,
    };
    create_task.pass_on(&[core.object()], arguments)
}

/// The values of `name`, `context` and, where `create_task` takes it, `eager_start`; each Python's `None` if it was not
/// passed. Returns nothing if there is another keyword.
#[inline(always)]
fn task_keywords<'a>(arguments: Arguments<'a>) -> Option<[Borrowed<'a>; 3]> {
    let mut found = [Borrowed::none(); 3];
    let known = [&imports().name, &imports().context, &imports().eager_start];
    let known = &known[..if CREATE_TASK_TAKES_EAGER_START { 3 } else { 2 }];
    for (name, value) in arguments.named() {
        let place = known.iter().position(|known| known.is(&name))?;
        found[place] = value;
    }
    Some(found)
}

fn new_task(core: Loop<'_>, coroutine: Borrowed<'_>, keywords: [Borrowed<'_>; 3]) -> Result<Ref, Raised> {
    let [name, context, eager_start] = keywords;
    let (this, class) = (core.object(), patches::task_class()?);
    if eager_start.is_none() {
        return class.call_keywords([coroutine], &imports().task_keywords, [this, name, context]);
    }
    class.call_keywords([coroutine], &imports().eager_task_keywords, [this, name, context, eager_start])
}

// -- the method table

const TIME: Method<Core> = Method::no_args(c"time", time, c"Seconds on the monotonic clock, as a float.");

const CALL_AT: Method<Core> = Method::fast(
    c"call_at",
    call_at,
    c"call_at(when, callback, *args, context=None)\n\nCall the callback when loop.time() has reached when. Returns a TimerHandle.",
);

/// The addresses by which `compat::clock` recognises the native methods.
pub(crate) fn native_timing() -> NativeTiming {
    NativeTiming { time: TIME.address(), call_at: CALL_AT.address() }
}

/// The methods that are added to the loop class.
pub(crate) const METHODS: &[Method<Core>] = &[
    Method::fast(
        c"call_soon",
        call_soon,
        c"call_soon(callback, *args, context=None)\n\nCall the callback in the next iteration of the loop, in the order of the calls. Returns a Handle.",
    ),
    Method::outside(
        c"call_soon_threadsafe",
        call_soon_threadsafe,
        c"call_soon_threadsafe(callback, *args, context=None)\n\nThe same as call_soon, for use from other threads. Wakes the loop if it is waiting.",
    ),
    Method::fast(
        c"call_later",
        call_later,
        c"call_later(delay, callback, *args, context=None)\n\nCall the callback after delay seconds, never earlier. Returns a TimerHandle.",
    ),
    CALL_AT,
    TIME,
    Method::fast(
        c"_add_reader",
        |core: Loop<'_>, arguments: Arguments<'_>| add_watch(core, Direction::Read, "_add_reader", arguments),
        c"_add_reader(fd, callback, *args, context=None)\n\nCall the callback whenever the descriptor is readable.",
    ),
    Method::fast(
        c"_add_writer",
        |core: Loop<'_>, arguments: Arguments<'_>| add_watch(core, Direction::Write, "_add_writer", arguments),
        c"_add_writer(fd, callback, *args, context=None)\n\nCall the callback whenever the descriptor is writable.",
    ),
    Method::no_args(c"get_debug", |core: Loop<'_>| core.is_debug(), c"True in debug mode."),
    Method::no_args(c"is_closed", |core: Loop<'_>| core.is_closed(), c"True once the loop was closed."),
    Method::no_args(
        c"is_running",
        |core: Loop<'_>| !core.thread_id.is_empty(),
        c"True while run_forever is active.",
    ),
    Method::no_args(
        c"stop",
        |core: Loop<'_>| core.state.stopping.set(true),
        c"Leave run_forever at the end of the current iteration.",
    ),
    Method::fast(
        c"create_task",
        create_task,
        c"create_task(coro, *, name=None, context=None, **kwargs)\n\nRun a coroutine as a task of this loop.",
    ),
    Method::no_args(
        c"create_future",
        |core: Loop<'_>| new_future(&core),
        c"Create an asyncio.Future of this loop.",
    ),
];
