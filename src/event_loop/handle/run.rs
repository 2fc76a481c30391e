//! How a handle runs its callback.
//!
//! A handle is emptied onto the stack before its callback runs, so that a cancel during the run finds nothing to free.
//! Handles of `add_reader` and `add_writer` run again and again, and handles in debug mode are named in the log
//! afterwards: these are copied instead.

use std::ptr::null_mut;

use pyo3::ffi;

use super::super::unraisable::unraisable;
use super::layout::{Handle, HandleRef, INLINE, Kind};
use super::run_lock::RunLock;
use crate::capi::call::{call_tuple, vectorcall};
use crate::capi::error::undisturbed;
use crate::capi::imports::imports;
use crate::capi::recycle::context::run_in;
use crate::capi::{Fatal, Raised, Ref, Slot};
use crate::compat::patches;

/// The arguments of a call, behind a spare place that the callee may use.
#[repr(C)]
struct Stack {
    spare: *mut ffi::PyObject,
    arguments: [Option<Ref>; INLINE],
}

impl Handle {
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

    /// The same in debug mode, where the log may want to name the callback afterwards. [`Handle::spent`] is to follow.
    #[cold]
    pub(crate) fn run_debug(&self) -> Result<(), Raised> {
        match self.kind {
            Kind::ThreadSafe => self.run_locked(Handle::run_copy),
            _ => self.run_copy(),
        }
    }

    #[inline(always)]
    fn run_once(&self) -> Result<(), Raised> {
        let (Some(callback), Some(context)) = (self.callback.take(), self.context.take()) else {
            return Ok(());
        };
        let mut stack = Stack { spare: null_mut(), arguments: self.take_arguments() };
        let tupled = self.tupled.get();
        let Err((raised, context)) = invoke(&callback, context, &mut stack, tupled) else {
            drop(callback);
            return Ok(());
        };
        if self.cancelled.get() || !self.callback.is_empty() || !self.arguments[0].is_empty() {
            // Cancelled, or given something else by the callback.
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

    /// Runs and keeps what it holds: a watcher's handle, or any handle in debug mode, where the slow
    /// callback log names the callback afterwards.
    #[cold]
    fn run_copy(&self) -> Result<(), Raised> {
        let (Some(callback), Some(context)) = (self.callback.get(), self.context_object()?) else {
            return Ok(());
        };
        let mut stack = Stack { spare: null_mut(), arguments: self.arguments.each_ref().map(Slot::get) };
        invoke(&callback, context, &mut stack, self.tupled.get()).map_err(|(raised, context)| {
            self.keep_context(context);
            raised
        })
    }

    /// After a failure, for the report, which runs in the callback's context even if the callback has cancelled its own
    /// handle. [`Handle::spent`] is to follow.
    fn keep_context(&self, context: Ref) {
        if self.context.is_empty() {
            self.context.set(Some(context));
        }
    }

    /// What `cancel()` and `cancelled()` begin with: they wait for a run in another thread.
    #[inline(always)]
    pub(super) fn wait_for_run(&self) -> Result<(), Raised> {
        self.lock().map_or(Ok(()), RunLock::wait)
    }

    /// Runs a ThreadSafeHandle by `run`; cancels from other threads wait.
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
    /// Has the callback run by the function that replaces `asyncio.Handle._run`, which sees the handle as an
    /// `asyncio.Handle`. False if there is none. [`Handle::spent`] is to follow.
    #[cold]
    pub(crate) fn run_by_patch(&self) -> Result<bool, Raised> {
        let Some(patch) = patches::handle_run()? else { return Ok(false) };
        let show = |_: &Handle| patch.call(&[self.object().borrow()]).map(drop);
        match self.kind {
            Kind::ThreadSafe => self.run_locked(show),
            _ => show(self),
        }
        .map(|()| true)
    }

    /// After a report that named the callback: the handle drops what it holds, unless it runs again. It had so many
    /// `owners` before the report: one that was added since still sees the callback in the handle's repr.
    #[cold]
    pub(crate) fn reported(&self, owners: isize) {
        let kept = self.object().refcount() > owners;
        if kept && self.kind != Kind::Repeated && self.shown.is_empty() {
            undisturbed(|| match self.object().repr() {
                Ok(text) => self.shown.set(Some(text)),
                // A callback whose own repr fails.
                Err(raised) => drop(raised.take()),
            });
        }
        self.spent();
    }
}

#[inline(always)]
fn invoke(callback: &Ref, context: Ref, stack: &mut Stack, tupled: bool) -> Result<(), (Raised, Ref)> {
    run_in(context, || match &stack.arguments[0] {
        // SAFETY: a tupled handle has its tuple in the first place.
        Some(tuple) if tupled => unsafe { call_tuple(callback, tuple.as_ptr(), null_mut()) },
        _ => {
            let count = stack.arguments.iter().flatten().count();
            // SAFETY: `count` live arguments behind one spare place: an optional `Ref` is a pointer or null.
            unsafe {
                let arguments = (&raw mut *stack).cast::<*mut ffi::PyObject>().add(1);
                vectorcall(callback.as_ptr(), arguments, count, null_mut())
            }
        }
    })
    .map(drop)
}

/// Runs a handle that is not ours: `asyncio.Handle` from inherited code or a third party.
pub(crate) fn run_foreign(handle: &Ref) -> Result<(), Raised> {
    if handle.getattr(&imports()._cancelled)?.is_true()? {
        return Ok(());
    }
    handle.call_method(&imports()._run, &[]).map(drop)
}
