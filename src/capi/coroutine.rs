//! Native objects that a task steps as it steps a coroutine.
//!
//! Such an object has `send`, `throw`, `close` and `__await__`, so that tasks, `wait_for` and `create_task` take it, and
//! `am_send`, by which the C task steps it without a StopIteration. What differs from class to class is one step, how to
//! give up, and the name: the trait [`Coroutine`]. [`class`] begins such a class.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;

use pyo3::ffi;

use super::arguments::Arguments;
use super::call::guard;
use super::class::ClassSpec;
use super::collector::Traverse;
use super::error::{Raised, raise, warn};
use super::exceptions::Exception;
use super::future::set_blocking;
use super::imports::imports;
use super::methods::{Attribute, Method, SelfSlot, TypeSlot};
use super::native::{Dead, Dealloc, This};
use super::object::{Borrowed, Ref, interpreter_ends};
use super::recycle::stop_iteration::end_await;
pub(crate) use super::recycle::stop_iteration::raise_stop;

/// What one step came to.
#[derive(Debug)]
pub(crate) enum Step {
    /// The end, with this result.
    Done(Ref),
    /// The task has to wait for this future.
    Wait(Ref),
    /// The task goes on in the next turn of its loop, as after `asyncio.sleep(0)`.
    Yield,
    /// The coroutine that this one awaits has yielded this.
    PassOn(Ref),
}

/// A native coroutine.
pub(crate) trait Coroutine: Traverse + Dealloc {
    /// Its name with its class, as in `TcpStream.read`: for the repr of tasks, and for the warning about a coroutine that
    /// was never awaited.
    fn name(&self) -> &'static str;

    /// Goes on as far as it can. `sent` is what was sent into it, most often `None`.
    fn step(this: This<'_, Self>, sent: Borrowed<'_>) -> Result<Step, Raised>;

    /// True once Python code has called `__await__`: it may step the object itself, and catch what it raises.
    fn by_hand(&self) -> &Cell<bool>;

    /// Nobody waits any more: drops everything. May be called more than once.
    fn finish(&self);

    /// The coroutine in Python that this one awaits, to which `throw` and `close` are passed on.
    fn awaited(&self) -> Option<Ref> {
        None
    }
}

/// A coroutine that nobody has awaited is most often a mistake, and Python says so. Called when it ends.
#[cold]
pub(crate) fn report_never_awaited<T: Coroutine>(dead: &Dead<T>) {
    warn_of(dead.name(), dead.kind().cast());
}

fn warn_of(name: &str, source: *mut ffi::PyObject) {
    if interpreter_ends() {
        return;
    }
    // If the warning is an error, it is reported for the class: the object itself is as good as gone.
    warn(
        Exception::RuntimeWarning.class().as_ptr(),
        &format!("coroutine '{name}' was never awaited"),
        source,
    );
}

/// One step, and the end on an error.
#[inline(always)]
fn advance<T: Coroutine>(this: This<'_, T>, sent: Borrowed<'_>) -> Result<Step, Raised> {
    let stepped = match T::step(this, sent) {
        Ok(Step::Wait(future)) => set_blocking(&future).map(|()| Step::Wait(future)),
        stepped => stepped,
    };
    stepped.map_err(|raised| fail(this, raised))
}

/// Ends on the error that is set, and leaves it set. No coroutine raises StopIteration: it would look like an end with a
/// result, and becomes what a generator makes of it.
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
    raise(exception);
    Raised
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
        let (this, sent) = unsafe { (This::<T>::from_ptr(object), Borrowed::from_ptr(sent)) };
        let value = match advance(this, sent) {
            Ok(Step::Done(value)) => {
                outcome = ffi::PySendResult::PYGEN_RETURN;
                return value.into_ptr();
            }
            Ok(Step::Wait(value) | Step::PassOn(value)) => value,
            Ok(Step::Yield) => Ref::none(),
            Err(Raised) => return null_mut(),
        };
        outcome = ffi::PySendResult::PYGEN_NEXT;
        value.into_ptr()
    });
    // SAFETY: the caller's place for the result.
    unsafe { *result = value };
    outcome
}

/// `__next__`: one step of an `await`, which wants StopIteration at the end.
fn next<T: Coroutine>(this: This<'_, T>) -> Result<Ref, Raised> {
    match advance(this, Borrowed::none())? {
        Step::Done(value) => Err(end_await(this.object(), this.by_hand().get(), value)),
        Step::Wait(value) | Step::PassOn(value) => Ok(value),
        Step::Yield => Ok(Ref::none()),
    }
}

/// `send(value)`.
fn send<T: Coroutine>(this: This<'_, T>, sent: Borrowed<'_>) -> Result<Ref, Raised> {
    match advance(this, sent)? {
        Step::Done(value) => Err(raise_stop(value)),
        Step::Wait(value) | Step::PassOn(value) => Ok(value),
        Step::Yield => Ok(Ref::none()),
    }
}

/// `throw(type[, value[, traceback]])`: ends the wait and raises.
fn throw<T: Coroutine>(this: This<'_, T>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    check_thrown(arguments)?;
    if let Some(coroutine) = this.awaited() {
        return coroutine.getattr(&imports().throw).and_then(|throw| throw.call(arguments.rest(0))).map_err(
            |raised| {
                let exception = raised.take();
                this.finish();
                raise(exception);
                Raised
            },
        );
    }
    this.finish();
    raise_thrown(arguments);
    Err(Raised)
}

/// `close()`.
fn close<T: Coroutine>(this: This<'_, T>) -> Result<(), Raised> {
    if let Some(coroutine) = this.awaited() {
        coroutine.call_method(&imports().close, &[])?;
    }
    this.finish();
    Ok(())
}

/// `__await__()`, called by Python code. The `await` expression uses the slot.
fn await_by_hand<T: Coroutine>(this: This<'_, T>) -> Ref {
    this.by_hand().set(true);
    this.object().to_owned()
}

/// Is it something that `throw(type[, value[, traceback]])` can raise? If not, a coroutine stays as it is.
fn check_thrown(arguments: Arguments<'_>) -> Result<(), Raised> {
    arguments.at_least(1, "throw", "type")?;
    let given = |index| arguments.get(index).filter(|value| !value.is_none());
    let Some(kind) = arguments.get(0) else { return Err(Raised) };
    let text = if given(2).is_some_and(|trace| !trace.is_traceback()) {
        "throw() third argument must be a traceback object".to_owned()
    } else if kind.is_exception() {
        if given(1).is_none() {
            return Ok(());
        }
        "instance exception may not have a separate value".to_owned()
    } else if kind.is_exception_class() {
        return Ok(());
    } else {
        let name = kind.kind_name();
        format!("exceptions must be classes or instances deriving from BaseException, not {name}")
    };
    Err(Exception::TypeError.raise(&text))
}

/// Sets the exception that `throw` was given, for which [`check_thrown`] holds.
fn raise_thrown(arguments: Arguments<'_>) {
    let Some(kind) = arguments.get(0) else { return };
    match arguments.get(1).filter(|value| !value.is_none()) {
        Some(value) if value.is_exception() => raise(value.to_owned()),
        None if kind.is_exception() => raise(kind.to_owned()),
        value => {
            let value = value.unwrap_or(Borrowed::none());
            // SAFETY: live objects; a class is called to make its exception, as the generator's throw does.
            unsafe { ffi::PyErr_SetObject(kind.as_ptr(), value.as_ptr()) }
        }
    }
}

/// Begins a class of coroutines. The caller adds what else it has, and builds it.
pub(crate) fn class<'py, T: Coroutine>(full_name: &'static std::ffi::CStr) -> ClassSpec<'py, T> {
    let am_send: ffi::sendfunc = am_send::<T>;
    // SAFETY: `am_send` is what the slot asks for.
    let am_send = unsafe { TypeSlot::raw(ffi::Py_am_send, am_send as *mut c_void) };
    ClassSpec::new(full_name)
        .methods(&[
            Method::one_arg(c"send", send, c"Take one step, as a coroutine's send does."),
            Method::fast(c"throw", throw, c"End the wait and raise, as a coroutine's throw does."),
            Method::no_args(c"close", close, c"End the wait."),
            Method::beside_slot(
                c"__await__",
                await_by_hand,
                c"Return an iterator to be used in await expression.",
            ),
        ])
        .attributes(&[
            Attribute::read_only(c"__qualname__", |this: This<'_, T>| this.name()),
            Attribute::read_only(c"__name__", |this: This<'_, T>| {
                let name = this.name();
                name.split_once('.').map_or(name, |(_, name)| name)
            }),
        ])
        .slots(&TypeSlot::collected())
        .slots(&[
            TypeSlot::dealloc(),
            am_send,
            TypeSlot::next(next),
            TypeSlot::itself(SelfSlot::Iter),
            TypeSlot::itself(SelfSlot::Await),
        ])
}
