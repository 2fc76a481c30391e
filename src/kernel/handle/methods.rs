//! The three Python types of handles, with their methods and attributes.
//!
//! For repr, ordering and equality, asyncio's own functions are called with our object as `self`. They read the
//! attributes that are defined here.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;

use pyo3::basic::CompareOp;
use pyo3::prelude::*;

use super::super::observe::recording;
use super::layout::{Handle, HandleKind, HandleRef, ThreadSafeHandle, TimerHandle};
use crate::capi::class::{ClassSpec, field};
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::fallible::interned;
use crate::capi::imports::imports;
use crate::capi::inspect::{boolean, not_implemented};
use crate::capi::methods::{Attribute, Method, TypeSlot};
use crate::capi::native::{Dead, Dealloc, Native, This, WeakList};
use crate::capi::{Borrowed, Fatal, Raised, Ref};

/// How many deallocations may nest. A handle can be an argument of another handle, and a long chain would overflow the
/// stack. So deeper ones are deferred to [`LATER`].
const NESTED: usize = 50;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Handles whose fields are dropped at the end of the outermost deallocation.
    static LATER: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// The three types of handles. Each of them begins with the fields of a [`Handle`].
trait AnyHandle: Dealloc {
    fn handle(&self) -> &Handle;

    /// Removes a timer from its loop's heap, if it is there.
    #[inline(always)]
    fn unschedule(&self) {}
}

impl AnyHandle for Handle {
    #[inline(always)]
    fn handle(&self) -> &Handle {
        self
    }
}

impl AnyHandle for TimerHandle {
    #[inline(always)]
    fn handle(&self) -> &Handle {
        &self.handle
    }

    #[inline(always)]
    fn unschedule(&self) {
        let slot = self.slot.get();
        if !slot.is_none()
            && let Some(event_loop) = self.handle.event_loop.get()
        {
            drop(event_loop.core().timers.remove(slot));
        }
    }
}

impl AnyHandle for ThreadSafeHandle {
    #[inline(always)]
    fn handle(&self) -> &Handle {
        &self.handle
    }
}

// -- deallocation

macro_rules! dealloc {
    ($($kind:ty),*) => {$(
        impl Dealloc for $kind {
            #[inline(always)]
            fn weaklist(&self) -> Option<&WeakList> {
                Some(&self.handle().weaklist)
            }

            /// Drops the fields, now or at the end of the outermost deallocation.
            #[inline(always)]
            fn dealloc(dead: Dead<$kind>) {
                if dead.handle().is_emptied() { dead.free() } else { end_nested(dead) }
            }
        }
    )*};
}

dealloc!(Handle, TimerHandle, ThreadSafeHandle);

fn end_nested<T: Native>(dead: Dead<T>) {
    let depth = DEPTH.get();
    if depth == NESTED {
        LATER.with_borrow_mut(|later| later.push(Box::new(dead)));
        return;
    }
    DEPTH.set(depth + 1);
    drop(dead);
    while depth == 0
        && let Some(next) = LATER.with_borrow_mut(Vec::pop)
    {
        drop(next);
    }
    DEPTH.set(depth);
}

impl Traverse for TimerHandle {
    fn traverse(&self, visitor: &mut Visitor) {
        self.handle.visit(&mut |held| visitor.reference(held));
    }

    /// Does nothing: the clear of the loop breaks a cycle, because it empties all handles of the loop.
    fn clear(&self) {}
}

// -- methods

fn cancel<T: AnyHandle>(this: This<'_, T>) -> Result<(), Raised> {
    let handle = this.handle();
    handle.wait_for_run()?;
    this.unschedule();
    if !handle.cancelled.replace(true) {
        if handle.event_loop.get().is_some_and(|event_loop| event_loop.core().is_debug()) {
            handle.repr.set(Some(this.object().repr()?));
        }
        handle.cancel();
    }
    Ok(())
}

fn cancelled<T: AnyHandle>(this: This<'_, T>) -> Result<bool, Raised> {
    this.handle().wait_for_run().map(|()| this.handle().is_cancelled())
}

fn context<T: AnyHandle>(this: This<'_, T>) -> Result<Option<Ref>, Raised> {
    this.handle().context_object()
}

/// `_run()`, for a `_run_once` written in Python, as some libraries have one. Errors are reported as in asyncio.
/// SystemExit and KeyboardInterrupt are raised.
fn run<T: AnyHandle>(this: This<'_, T>) -> Result<(), Raised> {
    let Ok(handle) = HandleRef::new(this.object().to_owned()) else { return Ok(()) };
    let event_loop = handle.event_loop.get();
    if let Some(event_loop) = &event_loop {
        recording::handle(event_loop.core(), handle.object());
    }
    if handle.run_by_patch()? {
        handle.finish_run();
        return Ok(());
    }
    let outcome = handle.run(|_| Ok(()));
    let Some(event_loop) = event_loop else { return Ok(()) };
    let core = event_loop.core();
    outcome
        .or_else(|raised| core.report_handle(&handle, raised))
        .and_then(|()| core.end_step())
        .map_err(|Fatal| Raised)
}

/// The asyncio class that this type replaces.
fn asyncio_class<T: AnyHandle>(this: This<'_, T>) -> Borrowed<'static> {
    match this.handle().kind {
        HandleKind::Once | HandleKind::Repeated => &imports().handle_class,
        HandleKind::Timer => &imports().timer_handle_class,
        HandleKind::ThreadSafe => &imports().thread_safe_handle_class,
    }
    .borrow()
}

/// What `dir` lists. Without this it would list what asyncio's class has, because of `__class__`.
fn names<T: AnyHandle>(this: This<'_, T>) -> Result<Ref, Raised> {
    let object = this.object();
    Ok(Ref::from(object.bind(object.py()).get_type().dir()?.into_any()))
}

/// Calls a function of asyncio's class with our object as `self`.
fn call_asyncio<T: AnyHandle>(
    this: This<'_, T>,
    name: &str,
    arguments: &[Borrowed<'_>],
) -> Result<Ref, Raised> {
    let function = asyncio_class(this).getattr(&interned(name)?)?;
    let all: Vec<_> = [this.object()].iter().chain(arguments).copied().collect();
    function.call(&all)
}

fn compare_timers(
    this: This<'_, TimerHandle>,
    other: Borrowed<'_>,
    comparison: CompareOp,
) -> Result<Ref, Raised> {
    let name = match comparison {
        CompareOp::Lt => "__lt__",
        CompareOp::Le => "__le__",
        CompareOp::Eq | CompareOp::Ne => "__eq__",
        CompareOp::Gt => "__gt__",
        CompareOp::Ge => "__ge__",
    };
    let result = call_asyncio(this, name, &[other])?;
    if matches!(comparison, CompareOp::Ne) && !result.is(&not_implemented()) {
        return Ok(boolean(!result.is_true()?));
    }
    Ok(result)
}

// -- tables

/// The new value of an attribute. Setting it to `None` is the same as deleting it.
fn given(value: Option<Borrowed<'_>>) -> Option<Borrowed<'_>> {
    value.filter(|value| !value.is_none())
}

fn set_arguments<T: AnyHandle>(this: This<'_, T>, value: Option<Borrowed<'_>>) -> Result<(), Raised> {
    let tuple = given(value).map(|value| value.to_tuple()).transpose()?;
    this.handle().set_arguments(tuple);
    Ok(())
}

/// Setting `_cancelled` to True cancels the handle. Setting it to False has an effect on the flag only, because a
/// cancelled handle has no callback.
fn set_cancelled<T: AnyHandle>(this: This<'_, T>, value: Option<Borrowed<'_>>) -> Result<(), Raised> {
    if !value.map_or(Ok(false), |value| value.is_true())? {
        this.handle().cancelled.set(false);
        return Ok(());
    }
    cancel(this)
}

/// Setting `_scheduled` to False removes the timer from the heap: asyncio's code does that to a handle that it has
/// removed from its own list of timers.
fn set_scheduled(this: This<'_, TimerHandle>, value: Option<Borrowed<'_>>) -> Result<(), Raised> {
    // Setting it to True has no effect: only the loop schedules handles.
    if !value.map_or(Ok(false), |value| value.is_true())? {
        this.unschedule();
    }
    Ok(())
}

fn when(this: This<'_, TimerHandle>) -> Result<Ref, Raised> {
    this.when_object()
}

/// The methods and attributes of all three types.
fn class<'py, T: AnyHandle>(name: &'static CStr) -> ClassSpec<'py, T> {
    let methods = [
        Method::no_args(c"cancel", cancel::<T>, c"Cancel the callback. It will not run."),
        Method::no_args(c"cancelled", cancelled::<T>, c"True if cancel() was called."),
        Method::no_args(c"get_context", context::<T>, c"The context in which the callback runs."),
        Method::no_args(c"_run", run::<T>, c"Run the callback now, as asyncio.Handle._run does."),
        Method::no_args(
            c"_repr_info",
            |this: This<'_, T>| call_asyncio(this, "_repr_info", &[]),
            c"The parts of the repr, as in asyncio.Handle.",
        ),
        Method::no_args(c"__dir__", names::<T>, c"The names of the attributes."),
    ];
    let attributes = [
        Attribute::read_only(c"__class__", asyncio_class::<T>),
        Attribute::new(
            c"_callback",
            |this: This<'_, T>| this.handle().callback.get(),
            |this: This<'_, T>, value| this.handle().callback.set(given(value).map(Borrowed::to_owned)),
        ),
        Attribute::new(c"_args", |this: This<'_, T>| this.handle().arguments_tuple(), set_arguments::<T>),
        Attribute::new(c"_context", context::<T>, |this: This<'_, T>, value: Option<Borrowed<'_>>| {
            // A handle that has run or was cancelled has no use for it.
            if !this.handle().callback.is_empty() {
                this.handle().context.set(given(value).map(Borrowed::to_owned));
            }
        }),
        Attribute::read_only(c"_loop", |this: This<'_, T>| this.handle().event_loop.slot().get()),
        Attribute::new(c"_cancelled", |this: This<'_, T>| this.handle().is_cancelled(), set_cancelled::<T>),
        Attribute::new(
            c"_repr",
            |this: This<'_, T>| this.handle().repr.get(),
            |this: This<'_, T>, value: Option<Borrowed<'_>>| {
                this.handle().repr.set(given(value).map(Borrowed::to_owned));
            },
        ),
        Attribute::new(
            c"_source_traceback",
            |this: This<'_, T>| this.handle().source_traceback.get(),
            |this: This<'_, T>, value: Option<Borrowed<'_>>| {
                this.handle().set_source_traceback(value.map(Borrowed::to_owned));
            },
        ),
    ];
    ClassSpec::new(name).methods(&methods).attributes(&attributes).slots(&[
        TypeSlot::dealloc(),
        TypeSlot::repr(|this: This<'_, T>| call_asyncio(this, "__repr__", &[])),
    ])
}

/// Makes the types. Called once, by the module's initialisation.
pub(crate) fn make_types(py: Python<'_>) -> PyResult<()> {
    class::<Handle>(c"wakeloop._core.Handle").weaklist(field!(Handle, weaklist)).build(py)?;
    class::<ThreadSafeHandle>(c"wakeloop._core.ThreadSafeHandle")
        .weaklist(field!(ThreadSafeHandle, handle.weaklist))
        .build(py)?;
    let scheduled = |this: This<'_, TimerHandle>| !this.slot.get().is_none();
    class::<TimerHandle>(c"wakeloop._core.TimerHandle")
        .methods(&[Method::no_args(c"when", when, c"The deadline in seconds, on the clock of loop.time().")])
        .attributes(&[
            Attribute::read_only(c"_when", when),
            Attribute::new(c"_scheduled", scheduled, set_scheduled),
        ])
        .slots(&[
            TypeSlot::compare(compare_timers),
            TypeSlot::hash(|this: This<'_, TimerHandle>| this.when_object()?.hash()),
        ])
        .slots(&TypeSlot::collected())
        .weaklist(field!(TimerHandle, handle.weaklist))
        .build(py)?;
    Ok(())
}
