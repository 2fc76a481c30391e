//! Calling Python from the loop: vectorcalls, and contexts entered without `Context.run`.
//!
//! `PyContext_Enter` and `PyContext_Exit` around a plain vectorcall cost about 2,000 instructions less than a call of
//! `Context.run`, which is what asyncio does per callback.
//!
//! **Daemon threads at exit.** Before 3.14, a thread that asks for the GIL while the interpreter shuts down is ended by
//! `pthread_exit`, which unwinds its stack. A Rust frame that catches panics would turn that into an abort of the process.
//! So the calls that run Python code are declared `C-unwind` here. When such an unwind comes through, a guard around them
//! parks the thread and never wakes it. The process is ending anyway.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};

use pyo3::ffi;

use super::arguments::Arguments;
use super::error::{Fatal, Raised};
use super::exceptions::raise_message;
use super::fallible::interned;
use super::imports::{Keywords, imports};
use super::inspect::status;
use super::object::{Borrowed, Ref};
use super::raised::is_error_set;
use super::section;

/// CPython's own functions, as functions that may unwind.
///
/// They are found by `dlsym`, not declared: pyo3-ffi declares the same symbols as never unwinding, link-time
/// optimisation merges the declarations of one symbol, and then no guard would ever run.
mod raw {
    use std::mem::transmute;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use pyo3::ffi::{self, PyObject};

    type Tuple = unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> *mut PyObject;
    type Vector = unsafe extern "C-unwind" fn(
        *mut PyObject,
        *const *mut PyObject,
        usize,
        *mut PyObject,
    ) -> *mut PyObject;

    macro_rules! found {
        ($($function:ident: $kind:ty = $symbol:literal, ($($argument:ident: $type:ty),*);)*) => {
            $(
                #[allow(non_snake_case, reason = "named like the function it is")]
                #[inline(always)]
                pub(super) unsafe fn $function($($argument: $type),*) -> *mut PyObject {
                    // Relaxed: stored once, at import, before any other thread can be here.
                    let address = addresses::$function.load(Ordering::Relaxed);
                    // SAFETY: the address is that of the function with this signature: found by its name, or
                    // pyo3's own declaration of it.
                    unsafe { transmute::<*mut (), $kind>(address)($($argument),*) }
                }
            )*

            #[allow(non_upper_case_globals, reason = "named like the functions they point to")]
            mod addresses {
                use super::*;
                $(pub(super) static $function: AtomicPtr<()> = AtomicPtr::new(ffi::$function as *mut ());)*
            }

            /// Looks the functions up.
            pub(super) fn find() {
                $(
                    // SAFETY: a C string; the handle means "as any symbol of this process is found".
                    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, $symbol.as_ptr()) };
                    if !address.is_null() {
                        addresses::$function.store(address.cast(), Ordering::Relaxed);
                    }
                )*
            }
        };
    }

    /// The function by which objects of a class are called, as `PyVectorcall_Function` finds it. A direct call saves the
    /// look for the thread state.
    ///
    /// # Safety
    /// A live object.
    #[inline(always)]
    unsafe fn vectorcall_of(callable: *mut PyObject) -> Option<Vector> {
        // SAFETY: the caller's contract. With this flag each instance has such a pointer at the offset, which may be null.
        unsafe {
            let kind = ffi::Py_TYPE(callable);
            if ffi::PyType_HasFeature(kind, ffi::Py_TPFLAGS_HAVE_VECTORCALL) == 0 {
                return None;
            }
            callable.byte_offset((*kind).tp_vectorcall_offset).cast::<Option<Vector>>().read()
        }
    }

    /// As `PyObject_Vectorcall`.
    ///
    /// # Safety
    /// A live callable, with the arguments of a vectorcall.
    #[inline(always)]
    pub(super) unsafe fn vectorcall(
        callable: *mut PyObject,
        arguments: *const *mut PyObject,
        count: usize,
        names: *mut PyObject,
    ) -> *mut PyObject {
        // SAFETY: the caller's contract.
        unsafe {
            let result = match vectorcall_of(callable) {
                Some(function) => function(callable, arguments, count, names),
                None => PyObject_Vectorcall(callable, arguments, count, names),
            };
            if result.is_null() {
                ensure_error();
            }
            result
        }
    }

    /// A call has failed. Sets SystemError if it has set no exception, as a function does for whose frame CPython has no
    /// memory.
    ///
    /// # Safety
    /// This thread is attached.
    #[cold]
    unsafe fn ensure_error() {
        // SAFETY: the caller's contract; a C string.
        unsafe {
            if ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_SetString(ffi::PyExc_SystemError, c"error return without exception set".as_ptr());
            }
        }
    }

    found! {
        PyObject_Call: Tuple = c"PyObject_Call",
            (callable: *mut PyObject, arguments: *mut PyObject, keywords: *mut PyObject);
        PyObject_Vectorcall: Vector = c"PyObject_Vectorcall",
            (callable: *mut PyObject, arguments: *const *mut PyObject, count: usize, names: *mut PyObject);
        PyObject_VectorcallMethod: Vector = c"PyObject_VectorcallMethod",
            (name: *mut PyObject, arguments: *const *mut PyObject, count: usize, names: *mut PyObject);
    }
}

/// Finds the functions that may unwind. Called once, by the module's initialisation.
pub(crate) fn find_functions() {
    raw::find();
}

/// Parks the thread when it is dropped: only an unwind drops it.
struct ParkOnUnwind;

impl Drop for ParkOnUnwind {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Runs Python code under the guard, and outside of the critical section of the native object that calls it.
#[inline(always)]
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> T {
    let guard = ParkOnUnwind;
    let result = section::release(call);
    std::mem::forget(guard);
    result
}

/// Calls `callable()`.
#[inline(always)]
pub(crate) fn call0(callable: &Ref) -> Result<Ref, Raised> {
    // SAFETY: a live callable; an owned reference or null with an error.
    unsafe { Ref::from_owned(guarded(|| raw::vectorcall(callable.as_ptr(), null(), 0, null_mut()))) }
        .ok_or(Raised)
}

/// Makes a vectorcall whose callee may use the place in front of the arguments.
///
/// # Safety
/// `arguments` points to `positional` live objects and then one per name, with one writable spare place in front of them;
/// `names` is a tuple of strings or null.
#[inline(always)]
pub(crate) unsafe fn vectorcall(
    callable: *mut ffi::PyObject,
    arguments: *mut *mut ffi::PyObject,
    positional: usize,
    names: *mut ffi::PyObject,
) -> Result<Ref, Raised> {
    let count = positional | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
    // SAFETY: the caller's contract.
    unsafe { Ref::from_owned(guarded(|| raw::vectorcall(callable, arguments, count, names))) }.ok_or(Raised)
}

/// Calls `callable(*arguments, **keywords)`.
///
/// # Safety
/// `arguments` is a tuple, `keywords` a dict or null.
pub(crate) unsafe fn call_tuple(
    callable: &Ref,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> Result<Ref, Raised> {
    // SAFETY: a live callable and the caller's contract.
    unsafe { Ref::from_owned(guarded(|| raw::PyObject_Call(callable.as_ptr(), arguments, keywords))) }
        .ok_or(Raised)
}

/// `object.__init__(*arguments, **keywords)`, through the `tp_init` of its class, if it has one.
///
/// # Safety
/// `arguments` is a tuple, `keywords` a dict or null.
#[inline(always)]
pub(crate) unsafe fn initialize(
    object: &Ref,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> Result<(), Raised> {
    type Initialize =
        unsafe extern "C-unwind" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut ffi::PyObject) -> c_int;
    // SAFETY: a live object; the slot's function with the right to unwind, as in `raw`.
    unsafe {
        let Some(slot) = (*object.kind()).tp_init else { return Ok(()) };
        let slot = std::mem::transmute::<ffi::initproc, Initialize>(slot);
        status(guarded(|| slot(object.as_ptr(), arguments, keywords)))
    }
}

impl Ref {
    /// Calls `self(*arguments)`.
    #[inline(always)]
    pub(crate) fn call(&self, arguments: &[Borrowed<'_>]) -> Result<Ref, Raised> {
        let count = arguments.len();
        // SAFETY: a live callable, and live arguments in a plain array: `Borrowed` is transparent over a pointer. No
        // offset flag is given, so nothing in front of the array is touched.
        unsafe {
            Ref::from_owned(guarded(|| {
                let arguments = arguments.as_ptr().cast::<*mut ffi::PyObject>();
                raw::vectorcall(self.as_ptr(), arguments, count, null_mut())
            }))
        }
        .ok_or(Raised)
    }

    /// As [`Ref::call`], with a spare place in front of the arguments that the callee may use: a bound method puts
    /// its receiver there instead of copying them.
    #[inline(always)]
    pub(crate) fn call_with<const N: usize>(&self, arguments: [Borrowed<'_>; N]) -> Result<Ref, Raised> {
        #[repr(C)]
        struct Stack<'a, const N: usize> {
            spare: *mut ffi::PyObject,
            arguments: [Borrowed<'a>; N],
        }
        let mut stack = Stack { spare: null_mut(), arguments };
        // SAFETY: live objects behind the spare place: `Borrowed` is transparent over a pointer.
        unsafe {
            let arguments = (&raw mut stack).cast::<*mut ffi::PyObject>().add(1);
            vectorcall(self.as_ptr(), arguments, N, null_mut())
        }
    }

    /// Calls `self(*positional, **keywords)`, with one value for each keyword.
    #[inline(always)]
    pub(crate) fn call_keywords<const P: usize, const K: usize>(
        &self,
        positional: [Borrowed<'_>; P],
        names: &Keywords<K>,
        values: [Borrowed<'_>; K],
    ) -> Result<Ref, Raised> {
        #[repr(C)]
        struct Stack<'a, const P: usize, const K: usize> {
            spare: *mut ffi::PyObject,
            positional: [Borrowed<'a>; P],
            values: [Borrowed<'a>; K],
        }
        let mut stack = Stack { spare: null_mut(), positional, values };
        // SAFETY: as in `call_with`, with a value for each name behind the positional ones.
        unsafe {
            let arguments = (&raw mut stack).cast::<*mut ffi::PyObject>().add(1);
            vectorcall(self.as_ptr(), arguments, P, names.tuple().as_ptr())
        }
    }

    /// Calls `self(*first, *arguments)`, with the keywords of `arguments`.
    #[cold]
    pub(crate) fn pass_on(&self, first: &[Borrowed<'_>], arguments: Arguments<'_>) -> Result<Ref, Raised> {
        let mut stack = vec![null_mut()];
        stack.extend(first.iter().chain(arguments.values()).map(|value| value.as_ptr()));
        let names = arguments.names().map_or(null_mut(), |names| names.as_ptr());
        // SAFETY: the positional values, then one for each name, behind the spare place.
        unsafe { vectorcall(self.as_ptr(), stack.as_mut_ptr().add(1), first.len() + arguments.len(), names) }
    }

    /// Calls `self.name(*arguments)` without making a bound method. There are at most six arguments.
    pub(crate) fn call_method(&self, name: &Ref, arguments: &[Borrowed<'_>]) -> Result<Ref, Raised> {
        let mut stack = [null_mut(); 8];
        debug_assert!(arguments.len() + 1 < stack.len());
        stack[1] = self.as_ptr();
        for (place, argument) in stack[2..2 + arguments.len()].iter_mut().zip(arguments) {
            *place = argument.as_ptr();
        }
        // SAFETY: the receiver and the arguments live; place 0 is the spare one of the offset flag.
        unsafe {
            Ref::from_owned(guarded(|| {
                let count = (arguments.len() + 1) | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
                let arguments = stack.as_ptr().add(1);
                raw::PyObject_VectorcallMethod(name.as_ptr(), arguments, count, null_mut())
            }))
        }
        .ok_or(Raised)
    }
}

/// Runs `body` inside `context` and leaves it again, whatever `body` did.
///
/// Entering can fail (the context is entered already, or it is no context at all): the error is set and `body` does not
/// run, as with `Context.run`.
#[inline(always)]
pub(crate) fn in_context<T>(context: &Ref, body: impl FnOnce() -> Result<T, Raised>) -> Result<T, Raised> {
    if enter(context) { leave(context, body()) } else { Err(Raised) }
}

/// Runs a callback by the `run` of an object that is no context, after it could not be entered: asyncio asks a context
/// for nothing else. If the error is about something else, it stays.
#[cold]
pub(crate) fn run_in_other(
    context: &Ref,
    callback: &Ref,
    arguments: &[Borrowed<'_>],
    raised: Raised,
) -> Result<(), Raised> {
    // SAFETY: a live object.
    if context.is_none() || unsafe { ffi::PyContext_CheckExact(context.as_ptr()) } != 0 {
        return Err(raised);
    }
    drop(raised.take());
    let all: Vec<_> = std::iter::once(callback.borrow()).chain(arguments.iter().copied()).collect();
    context.getattr(&interned("run")?)?.call(&all).map(drop)
}

/// As [`in_context`], for the one context that a native object runs all its callbacks in. A callback that causes
/// another one runs in the context already. If one of these callbacks enters another context, and runs a loop there, the
/// next callback runs in a copy, as each of asyncio's callbacks does.
#[inline(always)]
pub(crate) fn in_kept_context<T>(
    context: &Ref,
    body: impl FnOnce() -> Result<T, Raised>,
) -> Result<T, Raised> {
    if enter(context) { leave(context, body()) } else { in_entered_context(context, body) }
}

#[cold]
fn in_entered_context<T>(context: &Ref, body: impl FnOnce() -> Result<T, Raised>) -> Result<T, Raised> {
    drop(super::error::take_exception());
    // Only the context that was entered last can be left. So this says whether it is the current one.
    // SAFETY: a live object; the function itself checks that it is the context that was entered last.
    if unsafe { ffi::PyContext_Exit(context.as_ptr()) } >= 0 {
        return if enter(context) { body() } else { Err(Raised) };
    }
    drop(super::error::take_exception());
    in_context(&copy_context(context)?, body)
}

/// Enters a context. Returns false, with an error set, if that is not possible.
#[inline(always)]
pub(super) fn enter(context: &Ref) -> bool {
    // SAFETY: a live object; the function itself checks that it is a context.
    unsafe { ffi::PyContext_Enter(context.as_ptr()) >= 0 }
}

/// Leaves a context that was entered, and passes the result on. Leaving fails only if the callee entered or left
/// contexts without undoing it. Then that error is the result, unless there is one already.
#[inline(always)]
pub(super) fn leave<T>(context: &Ref, result: Result<T, Raised>) -> Result<T, Raised> {
    // SAFETY: a live object; the function itself checks that it is the context that was entered last.
    let left = unsafe { ffi::PyContext_Exit(context.as_ptr()) };
    if left < 0 && result.is_ok() { Err(Raised) } else { result }
}

/// `context.copy()`.
pub(crate) fn copy_context(context: &Ref) -> Result<Ref, Raised> {
    // SAFETY: a live object, which the function checks; an owned reference or null with an error.
    unsafe { Ref::from_owned(ffi::PyContext_Copy(context.as_ptr())) }.ok_or(Raised)
}

/// A copy of the current context.
#[inline(always)]
pub(crate) fn copy_current_context() -> Result<Ref, Raised> {
    // SAFETY: an owned reference or null with an error.
    unsafe { Ref::from_owned(ffi::PyContext_CopyCurrent()) }.ok_or(Raised)
}

/// The context that a caller gave, or a copy of the current one.
pub(crate) fn given_or_copied(context: Option<impl Into<Ref>>) -> Result<Ref, Raised> {
    context.map_or_else(copy_current_context, |context| Ok(context.into()))
}

/// Every function that C calls runs its body through this one. A panic becomes a Python exception instead of ending
/// the process. Without a panic this costs nothing.
///
/// A debug build checks that no error is left set by a call that succeeds: a [`Raised`] that was dropped would surface
/// in a later, innocent call.
#[inline(always)]
pub(crate) fn guard<T: Failure>(body: impl FnOnce() -> T) -> T {
    let checked = || {
        let result = body();
        debug_assert!(result.is_failure() || !is_error_set(), "a call that succeeded has left an error set");
        result
    };
    match catch_unwind(AssertUnwindSafe(checked)) {
        Ok(value) => value,
        Err(payload) => panicked(payload),
    }
}

/// The value by which a C function says that an error is set.
pub(crate) trait Failure: PartialEq + Sized {
    const FAILED: Self;

    #[inline(always)]
    fn is_failure(&self) -> bool {
        *self == Self::FAILED
    }
}

impl Failure for *mut ffi::PyObject {
    const FAILED: Self = null_mut();
}

impl Failure for i32 {
    const FAILED: Self = -1;
}

impl Failure for isize {
    const FAILED: Self = -1;
}

impl Failure for Result<(), Fatal> {
    const FAILED: Self = Err(Fatal);
}

#[cold]
fn panicked<T: Failure>(payload: Box<dyn std::any::Any + Send>) -> T {
    let text = panic_text(payload.as_ref());
    let Raised = raise_message(&imports().runtime_panic, &text);
    T::FAILED
}

/// The message of a panic, for the exception that it becomes.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a Rust panic without a message".to_owned()
    }
}
