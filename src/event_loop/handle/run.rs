//! How a handle runs its callback.
//!
//! A handle is emptied onto the stack before its callback runs, so that a cancel during the run finds nothing to free.
//! Handles of `add_reader` and `add_writer` run again and again, and handles in debug mode are named in the log
//! afterwards: these are copied instead.

use std::ptr::null_mut;

use pyo3::ffi;

use super::super::unraisable::unraisable;
use super::layout::{Handle, INLINE, Kind};
use super::run_lock::RunLock;
use crate::capi::call::{call_tuple, vectorcall};
use crate::capi::error::{take_exception, undisturbed};
use crate::capi::imports::imports;
use crate::capi::recycle::context::run_in;
use crate::capi::{Borrowed, Fatal, Raised, Ref};
use crate::compat::patches;

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

    /// Has the callback run by the function that replaces `asyncio.Handle._run`, which sees the handle as an
    /// `asyncio.Handle`. False if there is none. [`Handle::spent`] is to follow.
    #[cold]
    pub(crate) fn run_by_patch(&self) -> Result<bool, Raised> {
        let Some(patch) = patches::handle_run()? else { return Ok(false) };
        // SAFETY: a live handle.
        let show =
            |handle: &Handle| patch.call_with([unsafe { Borrowed::from_ptr(handle.as_ptr()) }]).map(drop);
        match self.kind {
            Kind::ThreadSafe => self.run_locked(show),
            _ => show(self),
        }
        .map(|()| true)
    }

    #[inline(always)]
    fn run_once(&self) -> Result<(), Raised> {
        let (Some(callback), Some(context)) = (self.callback.take(), self.context.take()) else {
            return Ok(());
        };
        let count = self.count.replace(0) as usize;
        let mut stack = [null_mut(); INLINE + 1];
        for (place, argument) in stack[1..=count].iter_mut().zip(&self.arguments[1..=count]) {
            *place = argument.get();
        }
        let result = self.invoke(&callback, context, &mut stack, count);
        match result {
            Ok(()) => {
                drop(callback);
                for argument in &stack[1..=count] {
                    // SAFETY: moved out of the handle above; a callee may use the spare slot only.
                    drop(unsafe { Ref::from_owned(*argument) });
                }
                Ok(())
            }
            Err((raised, context)) => {
                // Cancelled, or given something else by the callback.
                if self.cancelled.get() || !self.callback.is_empty() || self.count.get() > 0 {
                    for argument in &stack[1..=count] {
                        // SAFETY: as above.
                        drop(unsafe { Ref::from_owned(*argument) });
                    }
                    self.keep_context(context);
                } else {
                    for (argument, value) in self.arguments[1..=count].iter().zip(&stack[1..=count]) {
                        argument.set(*value);
                    }
                    self.count.set(count as u8);
                    self.callback.set(Some(callback));
                    self.context.set(Some(context));
                }
                Err(raised)
            }
        }
    }

    /// Runs and keeps what it holds: a watcher's handle, or any handle in debug mode, where the slow
    /// callback log names the callback afterwards.
    #[cold]
    fn run_copy(&self) -> Result<(), Raised> {
        let (Some(callback), Some(context)) = (self.callback.get(), self.context_object()?) else {
            return Ok(());
        };
        let count = self.count.get() as usize;
        let mut stack = [null_mut(); INLINE + 1];
        let mut owned = [const { None }; INLINE + 1];
        for (index, argument) in self.arguments.iter().enumerate().take(count + 1).skip(1) {
            stack[index] = argument.get();
            // SAFETY: the handle holds a reference.
            owned[index] = unsafe { Ref::from_nullable(stack[index]) };
        }
        self.invoke(&callback, context, &mut stack, count).map_err(|(raised, context)| {
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

    #[inline(always)]
    fn invoke(
        &self,
        callback: &Ref,
        context: Ref,
        stack: &mut [*mut ffi::PyObject; INLINE + 1],
        count: usize,
    ) -> Result<(), (Raised, Ref)> {
        run_in(context, || {
            if self.tupled.get() {
                // SAFETY: a tupled handle has its tuple in place 1.
                unsafe { call_tuple(callback, stack[1], null_mut()) }
            } else {
                // SAFETY: `count` live arguments behind one spare slot.
                unsafe { vectorcall(callback.as_ptr(), stack.as_mut_ptr().add(1), count, null_mut()) }
            }
        })
        .map(drop)
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

    /// After a report that named the callback: the handle drops what it holds, unless it runs again. It had so many
    /// `owners` before the report: one that was added since still sees the callback in the handle's repr.
    #[cold]
    pub(crate) fn reported(&self, owners: ffi::Py_ssize_t) {
        // SAFETY: a live object.
        let kept = unsafe { ffi::Py_REFCNT(self.as_ptr()) } > owners;
        if kept && self.kind != Kind::Repeated && self.shown.is_empty() {
            // SAFETY: a live handle; an owned reference or null with an error.
            undisturbed(|| match unsafe { Ref::from_owned(ffi::PyObject_Repr(self.as_ptr())) } {
                Some(text) => self.shown.set(Some(text)),
                // A callback whose own repr fails.
                None => drop(take_exception()),
            });
        }
        self.spent();
    }
}

/// Runs a handle that is not ours: `asyncio.Handle` from inherited code or a third party.
pub(crate) fn run_foreign(handle: &Ref) -> Result<(), Raised> {
    let names = imports();
    if handle.getattr(&names._cancelled)?.is_true()? {
        return Ok(());
    }
    handle.call_method(&names._run, &[]).map(drop)
}
