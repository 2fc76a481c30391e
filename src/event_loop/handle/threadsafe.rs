//! The handle of `call_soon_threadsafe`, with the rule that asyncio has since 3.14: while the callback runs,
//! `cancel()` and `cancelled()` block in every other thread. After a `cancel()` the callback has either run to
//! its end or never will.
//!
//! asyncio holds a reentrant lock through every run. Here the running thread is a number in the handle, which
//! the GIL guards; only a thread that really has to wait puts a gate (`threading.Event`) there, and the run
//! opens it when it ends. Waiting at the gate gives way to signals, as asyncio's lock does.

use std::cell::Cell;

use pyo3::ffi;
use pyo3::prelude::*;

use super::{Handle, Kind, Parts, THREAD_SAFE, THREAD_SAFE_TYPE, allocate, fill};
use crate::capi::call::method;
use crate::capi::error::restore;
use crate::capi::imports::{imports, support};
use crate::capi::{Raised, Ref, Slot};
use crate::event_loop::core::{Core, core_of};

/// A Handle that other threads may cancel.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ThreadSafeHandle {
    handle: Handle,
    /// The thread in which the callback runs at this moment.
    runner: Cell<Option<std::ffi::c_ulong>>,
    gate: Slot,
}

fn this_thread() -> std::ffi::c_ulong {
    // SAFETY: no conditions.
    unsafe { ffi::PyThread_get_thread_ident() }
}

impl ThreadSafeHandle {
    /// A new handle. It is not queued.
    #[inline(always)]
    pub(crate) fn create(core: &Core, parts: Parts<'_>) -> Result<Ref, Raised> {
        let object =
            allocate(&THREAD_SAFE, &THREAD_SAFE_TYPE, size_of::<ThreadSafeHandle>()).ok_or(Raised)?;
        // SAFETY: as in `Handle::create`; the fields behind the handle are written first.
        unsafe {
            let own = object.cast::<ThreadSafeHandle>();
            (&raw mut (*own).runner).write(Cell::new(None));
            (&raw mut (*own).gate).write(Slot::empty());
            let filled = fill(object.cast(), core, parts, Kind::ThreadSafe);
            let handle = Ref::from_owned(object).ok_or(Raised)?;
            filled.map(|()| handle)
        }
    }

    /// # Safety
    /// `object` is a ThreadSafeHandle and outlives the result.
    pub(super) unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a ThreadSafeHandle {
        // SAFETY: the caller's word; all fields are cells.
        unsafe { &*object.cast() }
    }

    /// Lets go of what it has beside the plain handle.
    pub(super) fn clear(&self) {
        self.gate.clear();
    }

    /// Blocks while the callback runs in another thread.
    fn wait(&self) -> Result<(), Raised> {
        let me = this_thread();
        while self.runner.get().is_some_and(|runner| runner != me) {
            let gate = match self.gate.get() {
                Some(gate) => gate,
                None => {
                    // SAFETY: GIL held, as in every method.
                    let py = unsafe { Python::assume_attached() };
                    let gate = support(py, "new_gate")
                        .and_then(|new| new.call0())
                        .map_err(|error| restore(py, error))?;
                    // Making it may have let other threads run: look again at everything.
                    if self.gate.is_empty() {
                        self.gate.set(Some(gate.into()));
                    }
                    continue;
                }
            };
            method(&gate, imports().wait.as_ptr(), &[])?;
        }
        Ok(())
    }
}

impl Handle {
    /// What `cancel()` and `cancelled()` begin with: a run in another thread comes first.
    #[inline(always)]
    pub(super) fn wait_for_run(&self) -> Result<(), Raised> {
        if self.kind == Kind::ThreadSafe { self.thread_safe().wait() } else { Ok(()) }
    }

    /// Runs a thread-safe handle by `run`, with cancels from other threads kept waiting.
    #[inline(always)]
    pub(super) fn run_locked(&self, run: impl FnOnce(&Handle) -> Result<(), Raised>) -> Result<(), Raised> {
        let own = self.thread_safe();
        own.wait()?;
        if self.cancelled.get() {
            return Ok(());
        }
        let outer = own.runner.replace(Some(this_thread()));
        let result = run(self);
        own.runner.set(outer);
        match own.gate.take() {
            Some(gate) if outer.is_none() => self.open(&gate, result),
            gate => {
                own.gate.set(gate);
                result
            }
        }
    }

    fn thread_safe(&self) -> &ThreadSafeHandle {
        debug_assert!(self.kind == Kind::ThreadSafe);
        // SAFETY: handles of this kind are made by `ThreadSafeHandle::create` only, and begin with `handle`.
        unsafe { ThreadSafeHandle::of(std::ptr::from_ref(self).cast_mut().cast()) }
    }

    /// Lets everyone go on who waits at the gate, whatever the run's result was.
    #[cold]
    fn open(&self, gate: &Ref, result: Result<(), Raised>) -> Result<(), Raised> {
        let error = result.err().map(|Raised| crate::capi::error::take_exception());
        if method(gate, imports().set.as_ptr(), &[]).is_err()
            && let Some(event_loop) = self.event_loop.get()
        {
            // SAFETY: one of our loops. A fatal error stays set and takes the result's place.
            let core = unsafe { core_of(event_loop.as_ptr()) };
            core.unraisable(Raised).map_err(|crate::capi::Fatal| Raised)?;
        }
        match error {
            None => Ok(()),
            Some(exception) => {
                crate::capi::error::raise(exception);
                Err(Raised)
            }
        }
    }
}
