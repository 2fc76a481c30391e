//! The way of an executor's result to the loop: what `asyncio.futures._chain_future` does for `run_in_executor`.
//!
//! asyncio ties the executor's future (`concurrent.futures.Future`) to its own with three nested functions, and
//! copies the state under three locks: a dozen calls of Python's per job, some of them in the worker thread, all of
//! them under the GIL. A [`Chain`] is all of these functions in one object:
//!
//! - the executor's future calls it when the job is done, in whatever thread: it schedules itself on the loop;
//! - the loop calls it without an argument: it copies the result;
//! - asyncio's future calls it when it is done: if it was cancelled, so is the job.
//!
//! It stands in for asyncio only where nobody could tell: [`chain`] leaves to asyncio's own functions every future
//! of another class, methods or functions that somebody has replaced, and a job that is done already;
//! [`Chain::copy`] leaves everything to them but a plain result for a future that waits.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::core::core_of;
use crate::capi::call::{call, call_keywords, call0, guard, method};
use crate::capi::collected::{Collected, Instance, clear, dealloc, traverse};
use crate::capi::error::{fetch, raise_message};
use crate::capi::imports::imports;
use crate::capi::once::Once;
use crate::capi::types::{Attribute, Method, TypeSpec};
use crate::capi::{Raised, Ref, Slot};
use crate::compat::{Class, Function};

/// What asyncio and `concurrent.futures` are like.
#[derive(Debug)]
struct Known {
    /// The class of the executors' futures.
    job: Class,
    pending: Ref,
    running: Ref,
    finished: Ref,
    chain_future: Function,
    copy_state: Function,
    /// asyncio copies at once when the job's end is told in the loop's own thread (3.14).
    copies_at_once: bool,
}

static KNOWN: Once<Known> = Once::new();
static WRAP_FUTURE: Once<Function> = Once::new();

const JOB_METHODS: [&str; 6] =
    ["add_done_callback", "cancelled", "exception", "result", "_Future__get_result", "_invoke_callbacks"];

/// The attributes of a job by their places among those that `wakeloop._executor` names.
const STATE: usize = 1;
const RESULT: usize = 2;
const EXCEPTION: usize = 3;
const CALLBACKS: usize = 5;

/// The object that is called.
#[repr(C)]
#[derive(Debug)]
struct Chain {
    base: ffi::PyObject,
    weaklist: Cell<*mut ffi::PyObject>,
    event_loop: Slot,
    job: Slot,
    future: Slot,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

// SAFETY: `repr(C)`, the object first, all state in cells.
unsafe impl Collected for Chain {
    fn held(&self) -> impl Iterator<Item = &Slot> {
        [&self.event_loop, &self.job, &self.future].into_iter()
    }

    fn let_go(&self) {
        drop(self.end());
        self.job.clear();
        self.future.clear();
    }
}

// SAFETY: as above; the type says that weak references are at `weaklist`.
unsafe impl Instance for Chain {
    fn weaklist(&self) -> &Cell<*mut ffi::PyObject> {
        &self.weaklist
    }
}

impl Chain {
    fn create(event_loop: *mut ffi::PyObject, job: &Ref, future: &Ref) -> Result<Ref, Raised> {
        // SAFETY: a type of ours, made at import (Relaxed: under the GIL). Zeroed memory is a Chain without references;
        // the loop is the receiver of the running call.
        unsafe {
            let object = ffi::PyType_GenericAlloc(TYPE.load(Ordering::Relaxed), 0);
            let chain = Ref::from_owned(object).ok_or(Raised)?;
            let own = &*object.cast::<Chain>();
            own.event_loop.set(Some(Ref::from_borrowed(event_loop)));
            core_of(event_loop).inbox.await_job();
            own.job.set(Some(job.clone_ref()));
            own.future.set(Some(future.clone_ref()));
            Ok(chain)
        }
    }

    /// The job is done. Called in any thread, with the GIL.
    fn job_done(&self, itself: *mut ffi::PyObject) -> Result<(), Raised> {
        let Some(event_loop) = self.event_loop.get() else { return Ok(()) };
        // SAFETY: `chain` is a method of our loops.
        if unsafe { core_of(event_loop.as_ptr()) }.is_closed() {
            return Ok(());
        }
        if KNOWN.get().is_some_and(|known| known.copies_at_once)
            && call0(&imports()._get_running_loop)?.as_ptr() == event_loop.as_ptr()
        {
            return self.copy(itself);
        }
        method(&event_loop, imports().call_soon_threadsafe.as_ptr(), &[itself]).map(drop)
    }

    /// One of the two futures is done.
    fn one_done(&self, itself: *mut ffi::PyObject, done: &Ref) -> Result<(), Raised> {
        if done.as_ptr() == self.job.as_ptr() {
            self.job_done(itself)
        } else if done.as_ptr() == self.future.as_ptr() {
            self.future_done(done)
        } else {
            // The result has been copied, and there is nothing to cancel any more.
            Ok(())
        }
    }

    /// asyncio's future is done: nobody waits for a job any more if it was cancelled.
    fn future_done(&self, future: &Ref) -> Result<(), Raised> {
        let Some(job) = self.job.get() else { return Ok(()) };
        let names = imports();
        if says(future, &names.cancelled)? {
            method(&job, names.cancel.as_ptr(), &[])?;
        }
        Ok(())
    }

    /// The job is awaited no more; its loop.
    fn end(&self) -> Option<Ref> {
        let event_loop = self.event_loop.take()?;
        // SAFETY: `chain` is a method of our loops.
        unsafe { core_of(event_loop.as_ptr()) }.inbox.end_job();
        Some(event_loop)
    }

    /// Gives asyncio's future what the job has come to; in the loop's thread. Then the chain is open: it holds nothing.
    fn copy(&self, itself: *mut ffi::PyObject) -> Result<(), Raised> {
        let (job, future) = (self.job.take(), self.future.take());
        let event_loop = self.end();
        let (Some(known), Some(job), Some(future)) = (KNOWN.get(), job, future) else { return Ok(()) };
        let names = imports();
        if let Some(result) = known.result_of(&job)?
            && !says(&future, &names.done)?
        {
            // It need not tell us of a result.
            method(&future, names.remove_done_callback.as_ptr(), &[itself])?;
            method(&future, names.set_result.as_ptr(), &[result.as_ptr()])?;
        } else {
            call(&known.copy_state.current()?, &[job.as_ptr(), future.as_ptr()])?;
        }
        drop(event_loop);
        Ok(())
    }
}

/// What a future of asyncio's own class says of itself.
fn says(future: &Ref, name: &Ref) -> Result<bool, Raised> {
    // SAFETY: the address of `True`; the class answers with a bool.
    Ok(method(future, name.as_ptr(), &[])?.as_ptr() == unsafe { ffi::Py_True() })
}

impl Known {
    /// The result of a job that has one, if asking asyncio's way would do no more than read it.
    fn result_of(&self, job: &Ref) -> Result<Option<Ref>, Raised> {
        if !self.copy_state.is_unpatched()?
            || !self.job.is_unpatched_on(job.as_ptr())?
            || self.job.get(job.as_ptr(), STATE)?.as_ptr() != self.finished.as_ptr()
            // SAFETY: comparing with the address of `None`.
            || self.job.get(job.as_ptr(), EXCEPTION)?.as_ptr() != unsafe { ffi::Py_None() }
        {
            return Ok(None);
        }
        self.job.get(job.as_ptr(), RESULT).map(Some)
    }

    /// May a [`Chain`] take the place of asyncio's functions for this job?
    fn stands_in_for(&self, job: *mut ffi::PyObject) -> Result<bool, Raised> {
        if !self.job.is_unpatched_on(job)?
            || !WRAP_FUTURE.get().map_or(Ok(false), Function::is_unpatched)?
            || !self.chain_future.is_unpatched()?
        {
            return Ok(false);
        }
        self.goes_on(job)
    }

    fn goes_on(&self, job: *mut ffi::PyObject) -> Result<bool, Raised> {
        let state = self.job.get(job, STATE)?;
        Ok([&self.pending, &self.running].iter().any(|known| known.as_ptr() == state.as_ptr()))
    }

    /// `job.add_done_callback(chain)`. The lock that it takes keeps the end of the job from coming between a look at the
    /// state and the entry in the list; here the GIL does, because nothing in between can give it up.
    fn tell(&self, job: &Ref, chain: &Ref) -> Result<(), Raised> {
        let callbacks = self.job.get(job.as_ptr(), CALLBACKS)?;
        // SAFETY: a live object.
        if self.goes_on(job.as_ptr())? && unsafe { ffi::PyList_CheckExact(callbacks.as_ptr()) } != 0 {
            // SAFETY: a list and a live object; -1 with an error set means failure.
            let done = unsafe { ffi::PyList_Append(callbacks.as_ptr(), chain.as_ptr()) };
            return if done < 0 { Err(Raised) } else { Ok(()) };
        }
        method(job, imports().add_done_callback.as_ptr(), &[chain.as_ptr()]).map(drop)
    }
}

/// `_chain(job)`: asyncio.futures.wrap_future(job, loop=self).
unsafe extern "C" fn chain(object: *mut ffi::PyObject, job: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: a borrowed argument of the running call.
        let job = unsafe { Ref::from_borrowed(job) };
        wrap(object, &job).map_or(null_mut(), Ref::into_ptr)
    })
}

fn wrap(event_loop: *mut ffi::PyObject, job: &Ref) -> Result<Ref, Raised> {
    let names = imports();
    let known = match KNOWN.get() {
        Some(known) if known.stands_in_for(job.as_ptr())? => known,
        _ => {
            let wrap_future = match WRAP_FUTURE.get() {
                Some(function) => function.current()?,
                None => unreachable!("the function is noted when the type is made"),
            };
            let mut stack = [null_mut(), job.as_ptr(), event_loop];
            // SAFETY: one positional and one keyword argument, whose name is in the tuple, behind the spare slot.
            return unsafe {
                call_keywords(&wrap_future, stack.as_mut_ptr().add(1), 1, names.future_keywords.as_ptr())
            };
        }
    };
    // SAFETY: the receiver of the running call.
    let receiver = unsafe { Ref::from_borrowed(event_loop) };
    let future = method(&receiver, names.create_future.as_ptr(), &[])?;
    // SAFETY: the type of a live object.
    if unsafe { ffi::Py_TYPE(future.as_ptr()) }.cast() != names.future.as_ptr() {
        call(&known.chain_future.current()?, &[job.as_ptr(), future.as_ptr()])?;
        return Ok(future);
    }
    let chain = Chain::create(event_loop, job, &future)?;
    method(&future, names.add_done_callback.as_ptr(), &[chain.as_ptr()])?;
    known.tell(job, &chain)?;
    Ok(future)
}

/// `tp_call`.
unsafe extern "C" fn called(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the slot's call for a Chain.
        let chain = unsafe { &*object.cast::<Chain>() };
        // SAFETY: a tuple, and a dict or null.
        let (count, named) = unsafe { (ffi::PyTuple_GET_SIZE(arguments), !keywords.is_null()) };
        let done = match count {
            0 if !named => chain.copy(object),
            1 if !named => {
                // SAFETY: borrowed from the tuple.
                let future = unsafe { Ref::from_borrowed(ffi::PyTuple_GET_ITEM(arguments, 0)) };
                chain.one_done(object, &future)
            }
            _ => {
                // SAFETY: an exception type is a static that CPython has filled.
                raise_message(unsafe { ffi::PyExc_TypeError }, "expected one future, or nothing");
                Err(Raised)
            }
        };
        done.map_or(null_mut(), |()| Ref::none().into_ptr())
    })
}

/// `__qualname__`: with what `repr(future)` and the log name the callback.
unsafe extern "C" fn qualified_name(_: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: an ASCII literal; an owned string or null with an error.
    unsafe { ffi::PyUnicode_FromString(c"EventLoop.run_in_executor.<locals>.chain".as_ptr()) }
}

/// What is put on the loop class.
pub(crate) const METHODS: &[Method] =
    &[Method::OneArg(c"_chain", chain, c"_chain(job, /)\n\nasyncio.futures.wrap_future(job, loop=self).")];

/// Makes the type, which lives for ever. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    let kind = TypeSpec {
        name: c"wakeloop._core.Chain",
        size: size_of::<Chain>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION,
        methods: &[],
        attributes: &[Attribute { name: c"__qualname__", get: qualified_name, set: None }],
        weaklist_offset: Some(std::mem::offset_of!(Chain, weaklist)),
        dict_offset: None,
        objects: &[],
        slots: &[
            (ffi::Py_tp_dealloc, dealloc::<Chain> as *mut c_void),
            (ffi::Py_tp_traverse, traverse::<Chain> as *mut c_void),
            (ffi::Py_tp_clear, clear::<Chain> as *mut c_void),
            (ffi::Py_tp_call, called as *mut c_void),
        ],
        bases: None,
    }
    .build(py)?;
    // Relaxed: published under the GIL.
    TYPE.store(kind, Ordering::Relaxed);
    WRAP_FUTURE.set(Function::in_module(py, "asyncio.futures", "wrap_future")?);
    Ok(())
}

/// Tells native code of asyncio's and the executors' functions. Called once, by `wakeloop._executor`, if they are
/// the ones that are known.
#[pyfunction]
pub(crate) fn chain_jobs(
    py: Python<'_>,
    job: (Bound<'_, PyAny>, Vec<String>),
    states: [Bound<'_, PyAny>; 3],
    copies_at_once: bool,
) -> PyResult<()> {
    let function = |name| Function::in_module(py, "asyncio.futures", name);
    let [pending, running, finished] = states.map(Ref::from);
    KNOWN.set(Known {
        job: Class::init(job.0, &JOB_METHODS, &job.1).map_err(|Raised| fetch(py))?,
        pending,
        running,
        finished,
        chain_future: function("_chain_future")?,
        copy_state: function("_copy_future_state")?,
        copies_at_once,
    });
    Ok(())
}
