//! Runs the callback of a handle.
//!
//! The callback, the arguments and the context are moved from the handle to the stack before the callback runs. So a
//! cancel during the run does not drop them. They are copied instead in two cases: a handle of `add_reader` or
//! `add_writer` may run again, and in debug mode the log may show the handle after the run.

use std::ptr::null_mut;

use pyo3::ffi;

use super::super::unraisable::unraisable;
use super::layout::{Handle, HandleKind, HandleRef, INLINE};
use super::run_lock::RunLock;
use crate::capi::call::{call_tuple, run_in_other, vectorcall};
use crate::capi::error::undisturbed;
use crate::capi::imports::imports;
use crate::capi::recycle::context::enter_for_callback;
use crate::capi::{Borrowed, Fatal, Raised, Ref, Slot};
use crate::compat::patches;

/// The arguments of a vectorcall, after the slot that the callee may overwrite.
#[repr(C)]
struct Stack {
    spare: *mut ffi::PyObject,
    arguments: [Option<Ref>; INLINE],
}

impl Handle {
    /// Runs the callback in its context. Does nothing if the handle was cancelled or has run. After an error the
    /// callback is put back into the handle, so that the report can name it; otherwise `after` is called with it.
    #[inline(always)]
    pub(crate) fn run(&self, after: impl FnOnce(&Ref) -> Result<(), Raised>) -> Result<(), Raised> {
        if self.callback.is_empty() {
            return Ok(());
        }
        match self.kind {
            HandleKind::Once | HandleKind::Timer => self.run_once(after),
            HandleKind::Repeated => self.run_copy(after),
            HandleKind::ThreadSafe => self.run_thread_safe(after),
        }
    }

    /// A function of its own, so that the other kinds are compiled into their caller.
    #[inline(never)]
    fn run_thread_safe(&self, after: impl FnOnce(&Ref) -> Result<(), Raised>) -> Result<(), Raised> {
        self.run_locked(|this| this.run_once(after))
    }

    /// Runs the callback in debug mode, and leaves it in the handle, so that the log can name it. The caller then calls
    /// [`Handle::finish_run`].
    #[cold]
    pub(crate) fn run_debug(&self) -> Result<(), Raised> {
        match self.kind {
            HandleKind::ThreadSafe => self.run_locked(|this| this.run_copy(|_| Ok(()))),
            _ => self.run_copy(|_| Ok(())),
        }
    }

    #[inline(always)]
    fn run_once(&self, after: impl FnOnce(&Ref) -> Result<(), Raised>) -> Result<(), Raised> {
        let (Some(callback), Some(context)) = (self.callback.take(), self.context.take()) else {
            return Ok(());
        };
        let mut stack = Stack { spare: null_mut(), arguments: self.take_arguments() };
        let tupled = self.tupled.get();
        let Err((raised, context)) = invoke(&callback, context, &mut stack, tupled) else {
            let noted = after(&callback);
            drop(callback);
            return noted;
        };
        if self.cancelled.get() || !self.callback.is_empty() || !self.arguments[0].is_empty() {
            // The callback has cancelled the handle, or has set another callback or other arguments.
            self.keep_context(context);
        } else {
            self.tupled.set(tupled);
            for (place, argument) in self.arguments.iter().zip(stack.arguments) {
                place.set(argument);
            }
            self.callback.set(Some(callback));
            self.context.set(Some(context));
        }
        Err(raised)
    }

    /// Runs the callback, and leaves it in the handle.
    #[cold]
    fn run_copy(&self, after: impl FnOnce(&Ref) -> Result<(), Raised>) -> Result<(), Raised> {
        let (Some(callback), Some(context)) = (self.callback.get(), self.context_object()?) else {
            return Ok(());
        };
        let mut stack = Stack { spare: null_mut(), arguments: self.arguments.each_ref().map(Slot::get) };
        invoke(&callback, context, &mut stack, self.tupled.get()).map_err(|(raised, context)| {
            self.keep_context(context);
            raised
        })?;
        after(&callback)
    }

    /// Keeps the context of a callback that has failed. The error is reported in this context, even if the callback has
    /// cancelled its own handle. The caller then calls [`Handle::finish_run`].
    fn keep_context(&self, context: Ref) {
        if self.context.is_empty() {
            self.context.set(Some(context));
        }
    }

    /// Waits while the callback runs on another thread. `cancel()` and `cancelled()` call this first.
    #[inline(always)]
    pub(super) fn wait_for_run(&self) -> Result<(), Raised> {
        self.lock().map_or(Ok(()), RunLock::wait)
    }

    /// Calls `run` for a ThreadSafeHandle. Meanwhile `cancel()` blocks on other threads.
    #[inline(always)]
    fn run_locked(&self, run: impl FnOnce(&Handle) -> Result<(), Raised>) -> Result<(), Raised> {
        let Some(lock) = self.lock() else { return run(self) };
        lock.wait()?;
        if self.is_cancelled() {
            return Ok(());
        }
        lock.hold(
            || run(self),
            |raised| match self.event_loop.get() {
                Some(event_loop) => unraisable(event_loop.object(), raised).map_err(|Fatal| Raised),
                None => Ok(()),
            },
        )
    }
}

impl HandleRef {
    /// Calls the patch of `asyncio.Handle._run`, which sees the handle as an `asyncio.Handle` and runs the callback.
    /// Returns false if there is no patch. Otherwise the caller then calls [`Handle::finish_run`].
    #[cold]
    pub(crate) fn run_by_patch(&self) -> Result<bool, Raised> {
        let Some(patch) = patches::handle_run()? else { return Ok(false) };
        let show = |_: &Handle| patch.call(&[self.object().borrow()]).map(drop);
        match self.kind {
            HandleKind::ThreadSafe => self.run_locked(show),
            _ => show(self),
        }
        .map(|()| true)
    }

    /// Empties the handle after its error was reported, unless it may run again. `owners` is its reference count before
    /// the report. If the exception handler has kept the handle, its repr still shows the callback.
    #[cold]
    pub(crate) fn reported(&self, owners: isize) {
        let kept = self.object().refcount() > owners;
        if kept && self.kind != HandleKind::Repeated && self.repr.is_empty() {
            self.keep_repr();
        }
        self.finish_run();
    }

    /// Cancels the handle of a watched descriptor. In debug mode its repr still shows the callback, as in asyncio.
    #[cold]
    pub(crate) fn cancel_watcher(&self) {
        let is_debug = self.event_loop.get().is_some_and(|event_loop| event_loop.core().is_debug());
        if !self.cancelled.replace(true) && is_debug {
            self.keep_repr();
        }
        self.cancel();
    }

    fn keep_repr(&self) {
        undisturbed(|| match self.object().repr() {
            Ok(text) => self.repr.set(Some(text)),
            // The repr of the callback has failed.
            Err(raised) => drop(raised.take()),
        });
    }
}

#[inline(always)]
fn invoke(callback: &Ref, context: Ref, stack: &mut Stack, tupled: bool) -> Result<(), (Raised, Ref)> {
    let entered = match enter_for_callback(context) {
        Ok(entered) => entered,
        Err((raised, context)) => return invoke_elsewhere(callback, context, raised, stack, tupled),
    };
    let result = match &stack.arguments[0] {
        // SAFETY: if `tupled` is set, the first argument is a tuple.
        Some(tuple) if tupled => unsafe { call_tuple(callback, tuple.as_ptr(), null_mut()) },
        _ => {
            let count = stack.arguments.iter().flatten().count();
            // SAFETY: `count` live arguments follow the slot that the callee may overwrite. An `Option<Ref>` has the
            // layout of a nullable pointer.
            unsafe {
                let arguments = (&raw mut *stack).cast::<*mut ffi::PyObject>().add(1);
                vectorcall(callback.as_ptr(), arguments, count, null_mut())
            }
        }
    };
    entered.leave(result.map(drop))
}

/// Runs the callback in a context that cannot be entered. An object that is no `contextvars.Context` has a `run` of its
/// own, which asyncio calls.
#[cold]
fn invoke_elsewhere(
    callback: &Ref,
    context: Ref,
    raised: Raised,
    stack: &Stack,
    tupled: bool,
) -> Result<(), (Raised, Ref)> {
    let tuple = stack.arguments[0].as_ref().filter(|_| tupled);
    let arguments: Vec<Borrowed<'_>> = match tuple.and_then(Ref::tuple_items) {
        Some(items) => items.to_vec(),
        None => stack.arguments.iter().flatten().map(Ref::borrow).collect(),
    };
    run_in_other(&context, callback, &arguments, raised).map_err(|raised| (raised, context))
}

/// Runs a handle that is not native, such as an `asyncio.Handle` from inherited code or another library.
pub(crate) fn run_foreign(handle: &Ref) -> Result<(), Raised> {
    if handle.getattr(&imports()._cancelled)?.is_true()? {
        return Ok(());
    }
    handle.call_method(&imports()._run, &[]).map(drop)
}
