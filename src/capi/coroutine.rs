//! Native objects that a task steps as it steps a coroutine.
//!
//! Such an object has `send`, `throw`, `close` and `__await__`, so that tasks, `wait_for` and `create_task` take it,
//! and `am_send`, by which the C task steps it without a StopIteration. What differs from class to class is in the
//! trait [`Coroutine`]: one step, what to drop at the end, and the name. [`class`] begins such a class.
//!
//! It also has the attributes of a coroutine by which tools inspect one: `cr_await`, `cr_frame`, `cr_running`,
//! `cr_suspended` and, as a coroutine has since Python 3.15, `cr_state`. So it takes part in `asyncio.capture_call_graph` and in `inspect.getcoroutinestate`. It has no
//! `cr_code`, so that the repr of a task shows its name.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::null_mut;

use pyo3::ffi;

use super::arguments::Arguments;
use super::call::guard;
use super::class::ClassSpec;
use super::collector::{Traverse, Visitor};
use super::error::{Raised, raise, undisturbed, warn};
use super::exceptions::Exception;
use super::fallible::{string, tuple};
use super::frame::native_frame;
use super::future::set_blocking;
use super::imports::imports;
use super::methods::{Attribute, Method, SelfSlot, TypeSlot};
use super::native::{Dead, Dealloc, Native, This, WeakList, in_section};
use super::object::{Borrowed, Ref, interpreter_ends};
pub(crate) use super::recycle::stop_iteration::raise_stop;
use super::recycle::stop_iteration::{end_await, forget_value};

/// The result of one step.
#[derive(Debug)]
pub(crate) enum Step {
    /// The coroutine has ended with this result.
    Done(Ref),
    /// The task has to wait for this future.
    Wait(Ref),
    /// The task continues in the next turn of its loop, as after `asyncio.sleep(0)`.
    Yield,
    /// The coroutine that this one awaits has yielded this value.
    PassOn(Ref),
}

impl Step {
    /// The value for the task, or else the result.
    #[inline(always)]
    fn yielded(self) -> Result<Ref, Ref> {
        match self {
            Step::Done(result) => Err(result),
            Step::Wait(value) | Step::PassOn(value) => Ok(value),
            Step::Yield => Ok(Ref::none()),
        }
    }
}

/// How a coroutine was awaited so far. Every native coroutine has such a field, at [`AwaitState::PLACE`].
///
/// `python -m asyncio ps` reads the memory of another process. Early releases of Python 3.14 take the coroutine of each
/// task for a generator object. In place of the state of a generator's frame they find `frame_state`, and read no
/// further.
#[derive(Debug)]
#[repr(C, align(8))]
pub(crate) struct AwaitState {
    /// A first step was taken, or the coroutine was closed before it.
    begun: Cell<bool>,
    /// Python code has called `__await__`: it may step the object itself, and catch what it raises.
    by_hand: Cell<bool>,
    spare: u8,
    frame_state: u8,
    /// When the current wait began, in [units](WAIT_UNIT) of CLOCK_MONOTONIC; 0 if that is not known.
    since: Cell<u32>,
}

/// As a power of two in nanoseconds: 4.2 ms. The count of them is ambiguous after 208 days.
const WAIT_UNIT: u32 = 22;

/// `FRAME_CLEARED` of CPython's `pycore_frame.h`: a generator whose frame is gone.
const FRAME_CLEARED: u8 = if cfg!(Py_3_15) { 5 } else { 4 };
/// How far behind its header a generator object has the state of its frame (`gi_frame_state`), if pointers have 8 bytes.
const FRAME_STATE: usize = 51;

impl Default for AwaitState {
    #[inline(always)]
    fn default() -> AwaitState {
        AwaitState {
            begun: Cell::new(false),
            by_hand: Cell::new(false),
            spare: 0,
            frame_state: FRAME_CLEARED,
            since: Cell::new(0),
        }
    }
}

impl AwaitState {
    /// Where the field is among the fields of a coroutine.
    const PLACE: usize = FRAME_STATE - offset_of!(AwaitState, frame_state);

    /// The task waits from now on. `now` is CLOCK_MONOTONIC in nanoseconds, to within a turn of the loop; 0 if it is
    /// not known.
    #[inline(always)]
    pub(crate) fn begin_wait(&self, now: u64) {
        self.since.set((now >> WAIT_UNIT) as u32);
    }

    /// For how many seconds the task has waited, if that is known.
    fn waited(&self, now: u64) -> Option<f64> {
        let since = self.since.get();
        let units = ((now >> WAIT_UNIT) as u32).wrapping_sub(since);
        (since != 0).then(|| f64::from(units) * (1_u64 << WAIT_UNIT) as f64 / 1e9)
    }
}

/// The object that a coroutine waits for.
#[derive(Debug)]
pub(crate) struct Wait {
    /// One of the kinds of `wakeloop.waits.Kind`.
    pub(crate) kind: &'static str,
    /// The object whose state or data it waits for, if Python code can have it.
    pub(crate) target: Option<Ref>,
}

/// A native coroutine.
pub(crate) trait Coroutine: Native {
    /// The name with that of its class, as in `TcpStream.read`: for the repr of tasks, and for the warning about a
    /// coroutine that was never awaited.
    fn name(&self) -> &'static str;

    /// The name without that of its class.
    fn method_name(&self) -> &'static str {
        let name = self.name();
        name.split_once('.').map_or(name, |(_, name)| name)
    }

    /// Where the struct has its [`AwaitState`], by `offset_of!`.
    const AWAITED: usize;

    fn awaited(&self) -> &AwaitState;

    /// What it waits for: a future, or an object like a coroutine. For tools that inspect it.
    fn waits_for(&self) -> Option<Ref>;

    /// The kind and the target of its wait, for `wakeloop.tasks()`. Asked only while it waits.
    fn wait(&self) -> Wait;

    /// Has it ended, or was it closed?
    fn is_over(&self) -> bool;

    /// Does one of its steps run now?
    #[inline(always)]
    fn is_running(&self) -> bool {
        false
    }

    /// The error of using it after its end.
    fn over_error(&self) -> Raised {
        already_awaited()
    }

    /// Continues as far as it can. `sent` is the value sent into it, most often `None`.
    fn step(this: This<'_, Self>, sent: Borrowed<'_>) -> Result<Step, Raised>;

    /// Drops everything that the coroutine holds. Called after the last step, and possibly again later.
    fn finish(&self);

    /// Shows the collector every reference that the object holds, as [`Traverse::traverse`].
    fn visit(&self, visitor: &mut Visitor);

    /// The coroutine in Python that this one awaits, to which `throw` and `close` are passed on.
    fn delegate(&self) -> Option<Ref> {
        None
    }

    /// Continues after an exception that was thrown into its wait, if it handles that, as a coroutine that waits in a
    /// `try` block.
    fn handle(_this: This<'_, Self>, _exception: &Ref) -> Option<Result<Step, Raised>> {
        None
    }

    /// As [`Dealloc::weaklist`].
    #[inline(always)]
    fn weaklist(&self) -> Option<&WeakList> {
        None
    }
}

impl<T: Coroutine> Traverse for T {
    fn traverse(&self, visitor: &mut Visitor) {
        self.visit(visitor);
    }

    fn clear(&self) {
        end(self);
    }
}

impl<T: Coroutine> Dealloc for T {
    #[inline(always)]
    fn weaklist(&self) -> Option<&WeakList> {
        Coroutine::weaklist(self)
    }

    #[inline(always)]
    fn dealloc(dead: Dead<Self>) {
        if !dead.awaited().begun.get() {
            report_never_awaited(&dead);
        }
        forget_value();
        // This comes before the fields are dropped, because it needs what they hold.
        dead.finish();
    }
}

/// Issues Python's warning about a coroutine that was never awaited.
#[cold]
fn report_never_awaited<T: Coroutine>(dead: &Dead<T>) {
    if interpreter_ends() {
        return;
    }
    // If the warning is turned into an error, it is reported for the class, because the object itself is being freed.
    warn(
        Exception::RuntimeWarning.class().as_ptr(),
        &format!("coroutine '{}' was never awaited", dead.name()),
        dead.kind().cast(),
    );
}

/// The error of a step after the end of a coroutine.
#[cold]
pub(crate) fn already_awaited() -> Raised {
    Exception::RuntimeError.raise("cannot reuse already awaited coroutine")
}

/// The error of using a coroutine from Python code that one of its own steps runs.
#[cold]
fn already_executing() -> Raised {
    Exception::ValueError.raise("coroutine already executing")
}

/// Ends a coroutine that may not have begun.
fn end<T: Coroutine>(coroutine: &T) {
    coroutine.awaited().begun.set(true);
    coroutine.finish();
}

/// Takes one step, and ends the coroutine on a result or an error.
#[inline(always)]
pub(crate) fn advance<T: Coroutine>(this: This<'_, T>, sent: Borrowed<'_>) -> Result<Step, Raised> {
    if this.is_running() {
        return Err(already_executing());
    }
    this.awaited().begun.set(true);
    settle(this, T::step(this, sent))
}

/// Ends the coroutine if the step was its last.
#[inline(always)]
fn settle<T: Coroutine>(this: This<'_, T>, step: Result<Step, Raised>) -> Result<Step, Raised> {
    let step = match step {
        Ok(step) => step,
        Err(raised) => return Err(fail(this, raised)),
    };
    match &step {
        Step::Done(_) => this.finish(),
        Step::Wait(future) => set_blocking(future).map_err(|raised| fail(this, raised))?,
        Step::Yield | Step::PassOn(_) => {}
    }
    Ok(step)
}

/// Ends the coroutine on the error that is set, and leaves it set. A coroutine must not raise StopIteration, because
/// it would look like an end with a result. As in a generator, it becomes a RuntimeError.
#[cold]
fn fail<T: Coroutine>(this: This<'_, T>, raised: Raised) -> Raised {
    let mut exception = raised.take();
    this.finish();
    if Exception::StopIteration.matches(&exception) {
        let outer = Exception::RuntimeError.raise("coroutine raised StopIteration").take();
        // SAFETY: live exceptions; both setters take over the reference they are given.
        unsafe {
            ffi::PyException_SetCause(outer.as_ptr(), exception.clone_ref().into_ptr());
            ffi::PyException_SetContext(outer.as_ptr(), exception.into_ptr());
        }
        exception = outer;
    }
    raise(exception)
}

/// `am_send`: what the C task calls. Returns without raising StopIteration.
unsafe extern "C" fn am_send<T: Coroutine>(
    object: *mut ffi::PyObject,
    sent: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let mut outcome = ffi::PySendResult::PYGEN_ERROR;
    let value = guard(|| {
        // SAFETY: the slot belongs to T's class; the caller holds the object and what it sends.
        let step = unsafe {
            let sent = Borrowed::from_ptr(sent);
            in_section(object, |this: This<'_, T>| advance(this, sent).map(Step::yielded))
        };
        let (kind, value) = match step {
            Ok(Ok(value)) => (ffi::PySendResult::PYGEN_NEXT, value),
            Ok(Err(result)) => (ffi::PySendResult::PYGEN_RETURN, result),
            Err(Raised) => return null_mut(),
        };
        outcome = kind;
        value.into_ptr()
    });
    // SAFETY: the caller's place for the result.
    unsafe { *result = value };
    outcome
}

/// `__next__`: one step of an `await`, which expects StopIteration at the end.
fn next<T: Coroutine>(this: This<'_, T>) -> Result<Ref, Raised> {
    let by_hand = &this.awaited().by_hand;
    let step = advance(this, Borrowed::none())?;
    step.yielded().map_err(|result| end_await(this.object(), by_hand.get(), result))
}

/// `send(value)`.
fn send<T: Coroutine>(this: This<'_, T>, sent: Borrowed<'_>) -> Result<Ref, Raised> {
    advance(this, sent)?.yielded().map_err(raise_stop)
}

/// `throw(type[, value[, traceback]])`: ends the wait, and raises or handles the exception.
fn throw<T: Coroutine>(this: This<'_, T>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let exception = thrown(arguments)?;
    if this.is_running() {
        return Err(already_executing());
    }
    if this.is_over() {
        return Err(this.over_error());
    }
    if let Some(coroutine) = this.delegate() {
        return coroutine
            .call_method(&imports().throw, &[exception.borrow()])
            .inspect_err(|Raised| undisturbed(|| end(this.fields())));
    }
    if let Some(step) = T::handle(this, &exception) {
        return settle(this, step)?.yielded().map_err(raise_stop);
    }
    end(this.fields());
    Err(raise(exception))
}

/// `close()`.
fn close<T: Coroutine>(this: This<'_, T>) -> Result<(), Raised> {
    if this.is_running() {
        return Err(already_executing());
    }
    if let Some(coroutine) = this.delegate() {
        coroutine
            .call_method(&imports().close, &[])
            .inspect_err(|Raised| undisturbed(|| end(this.fields())))?;
    }
    end(this.fields());
    Ok(())
}

/// `__await__()`, called by Python code. The `await` expression uses the slot.
fn await_by_hand<T: Coroutine>(this: This<'_, T>) -> Ref {
    this.awaited().by_hand.set(true);
    this.object().to_owned()
}

/// The exception that `throw(type[, value[, traceback]])` is to raise. On an error the coroutine stays as it is.
fn thrown(arguments: Arguments<'_>) -> Result<Ref, Raised> {
    arguments.at_least(1, "throw", "type")?;
    let given = |index| arguments.get(index).filter(|value| !value.is_none());
    let (kind, value, trace) = (arguments.get(0).unwrap_or(Borrowed::none()), given(1), given(2));
    let text = if trace.is_some_and(|trace| !trace.is_traceback()) {
        "throw() third argument must be a traceback object".to_owned()
    } else if kind.is_exception() && value.is_some() {
        "instance exception may not have a separate value".to_owned()
    } else if kind.is_exception() || kind.is_exception_class() {
        let exception = match value {
            None if kind.is_exception() => kind.to_owned(),
            Some(value) if is_instance_of_class(value, kind)? => value.to_owned(),
            _ => {
                let value = value.unwrap_or(Borrowed::none());
                // SAFETY: live objects; the class is called to make its exception, as the generator's throw does.
                unsafe { ffi::PyErr_SetObject(kind.as_ptr(), value.as_ptr()) };
                Raised.take()
            }
        };
        if let Some(trace) = trace {
            // SAFETY: an exception and a traceback, both alive.
            unsafe { ffi::PyException_SetTraceback(exception.as_ptr(), trace.as_ptr()) };
        }
        return Ok(exception);
    } else {
        let name = kind.kind_name();
        format!("exceptions must be classes or instances deriving from BaseException, not {name}")
    };
    Err(Exception::TypeError.raise(&text))
}

/// Is the value an exception of this class? An exception of another class becomes an argument of the class.
fn is_instance_of_class(value: Borrowed<'_>, class: Borrowed<'_>) -> Result<bool, Raised> {
    if !value.is_exception() {
        return Ok(false);
    }
    // SAFETY: live objects, both classes; -1 with an error set means failure.
    match unsafe { ffi::PyObject_IsSubclass(value.kind().cast(), class.as_ptr()) } {
        ..0 => Err(Raised),
        found => Ok(found > 0),
    }
}

/// `cr_frame`: a frame that shows the name, until the coroutine is over.
fn frame<T: Coroutine>(this: This<'_, T>) -> Result<Option<Ref>, Raised> {
    if this.is_over() { Ok(None) } else { native_frame(this.name()).map(Some) }
}

/// `cr_suspended`.
fn is_suspended<T: Coroutine>(this: This<'_, T>) -> bool {
    this.awaited().begun.get() && !this.is_over() && !this.is_running()
}

/// `cr_state`: one of the constants of the module `inspect`.
fn state<T: Coroutine>(this: This<'_, T>) -> &'static str {
    if this.is_running() {
        return "CORO_RUNNING";
    }
    match (this.is_over(), this.awaited().begun.get()) {
        (true, _) => "CORO_CLOSED",
        (false, true) => "CORO_SUSPENDED",
        (false, false) => "CORO_CREATED",
    }
}

/// `_waited(now)`: for how many seconds the coroutine has waited, if that is known.
fn waited<T: Coroutine>(this: This<'_, T>, now: Borrowed<'_>) -> Result<Option<f64>, Raised> {
    let now = now.to_owned().to_float()? * 1e9;
    Ok(this.awaited().waited(now as u64).filter(|_| this.waits_for().is_some()))
}

/// `_wait`: a tuple of what is in a [`Wait`].
fn wait<T: Coroutine>(this: This<'_, T>) -> Result<Ref, Raised> {
    let Wait { kind, target } = this.wait();
    tuple([string(kind)?, target.unwrap_or_else(Ref::none)])
}

/// The name, and the object that the call is of until it is over: what `wakeloop.tasks()` says, without the addresses.
fn repr<T: Coroutine>(this: This<'_, T>) -> Result<String, Raised> {
    let target = if this.is_over() { None } else { this.wait().target };
    let Some(target) = target else { return Ok(format!("<wakeloop operation {}>", this.name())) };
    let target = target.repr()?;
    Ok(format!("<wakeloop operation {} on {}>", this.name(), target.text().unwrap_or_default()))
}

/// Begins a class of coroutines. The caller adds what else it has, and builds it.
pub(crate) fn class<'py, T: Coroutine>(full_name: &'static std::ffi::CStr) -> ClassSpec<'py, T> {
    const {
        assert!(T::AWAITED == AwaitState::PLACE || size_of::<usize>() != 8);
    }
    let am_send: ffi::sendfunc = am_send::<T>;
    // SAFETY: `am_send` is what the slot asks for.
    let am_send = unsafe { TypeSlot::raw(ffi::Py_am_send, am_send as *mut c_void) };
    ClassSpec::new(full_name)
        .methods(&[
            Method::one_arg(c"send", send, c"Take one step, as a coroutine's send does."),
            Method::fast(c"throw", throw, c"throw(type, value=None, traceback=None, /)\n\nEnd the wait and raise, as a coroutine's throw does."),
            Method::no_args(c"close", close, c"End the wait."),
            Method::one_arg(c"_waited", waited, c"_waited(now, /)\n\nFor how many seconds it has waited, or None. `now` is time.monotonic()."),
            Method::beside_slot(
                c"__await__",
                await_by_hand,
                c"The operation itself, which is the iterator that `await` steps.",
            ),
        ])
        .attributes(&[
            Attribute::read_only(c"__qualname__", |this: This<'_, T>| this.name())
                .doc(c"The name of what was called, with that of its class."),
            Attribute::read_only(c"__name__", |this: This<'_, T>| this.method_name())
                .doc(c"The name of what was called."),
            Attribute::read_only(c"cr_await", |this: This<'_, T>| this.waits_for())
                .doc(c"What it waits for: a future, or an object like a coroutine."),
            Attribute::read_only(c"_wait", wait).doc(c"What its wait is for: one of the kinds of wakeloop.waits, and an object or None."),
            Attribute::read_only(c"cr_frame", frame).doc(c"A frame that shows its name; None if it is over."),
            // Only Python code that a step calls sees that.
            Attribute::read_only(c"cr_running", |this: This<'_, T>| this.is_running()).doc(c"Whether a step runs."),
            Attribute::read_only(c"cr_suspended", is_suspended).doc(c"Whether it was started and is not over."),
            Attribute::read_only(c"cr_state", state).doc(c"Its state, as inspect.getcoroutinestate gives it."),
        ])
        .slots(&TypeSlot::collected())
        .slots(&[
            TypeSlot::dealloc(),
            am_send,
            TypeSlot::repr(repr),
            TypeSlot::next(next),
            TypeSlot::itself(SelfSlot::Iter),
            TypeSlot::itself(SelfSlot::Await),
        ])
}
