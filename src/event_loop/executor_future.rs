//! Sends an executor's result to the loop: a native `asyncio.futures._chain_future`, for `run_in_executor`.
//!
//! asyncio connects the executor's future (`concurrent.futures.Future`) with its own by three nested functions, and
//! copies the state under three locks. That is a dozen calls of Python functions per job, some of them in the worker
//! thread, all of them with the GIL held. An [`ExecutorFuture`] is one object that replaces these functions:
//!
//! - The executor's future calls it when the job is done, in any thread. It then schedules itself on the loop.
//! - The loop calls it without an argument. It then copies the result to asyncio's future.
//! - asyncio's future calls it when that future is done. If the future was cancelled, it then cancels the job.
//!
//! It replaces asyncio's functions only where a program cannot observe it. [`wrap`] calls asyncio's own functions if a
//! future is of another class, if a method or function is patched, or if the job is done already. [`copy`] handles only
//! a result for a future that is pending, and calls asyncio's function in all other cases.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::class::{ClassSpec, field};
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::fallible::interned;
use crate::capi::imports::imports;
use crate::capi::inspect::{boolean, status};
use crate::capi::methods::{Attribute, Method, TypeSlot};
use crate::capi::native::{self, Dealloc, This, WeakList, native_class};
use crate::capi::once::Once;
use crate::capi::section::FREE_THREADED;
use crate::capi::{Borrowed, Exception, Raised, Ref, Slot};
use crate::compat::{Class, Function};
use crate::kernel::core::Core;
use crate::kernel::core::loop_ref::{LoopRef, LoopSlot};

/// The classes, states and functions of asyncio and `concurrent.futures`, as they were at import.
#[derive(Debug)]
struct Known {
    /// The class of the executors' futures.
    job: Class,
    pending: Ref,
    running: Ref,
    finished: Ref,
    chain_future: Function,
    copy_state: Function,
    /// asyncio copies the result at once if the job ends on the loop's own thread (since 3.14).
    copies_at_once: bool,
    /// The function that asyncio adds to its own future. A repr shows its name and place.
    shown: Ref,
}

static KNOWN: Once<Known> = Once::new();
static WRAP_FUTURE: Once<Function> = Once::new();

/// Indices of a job's attributes in the list that `wakeloop._loop.executor` passes.
const STATE: usize = 1;
const RESULT: usize = 2;
const EXCEPTION: usize = 3;
const CALLBACKS: usize = 5;

/// The callback object; see the head of this file.
#[derive(Debug)]
struct ExecutorFuture {
    weaklist: WeakList,
    event_loop: LoopSlot,
    job: Slot,
    future: Slot,
}

// `make_type` builds the class. Only `create` makes instances.
native_class!(unsafe ExecutorFuture);

impl Dealloc for ExecutorFuture {
    fn weaklist(&self) -> Option<&WeakList> {
        Some(&self.weaklist)
    }
}

impl Traverse for ExecutorFuture {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slots([self.event_loop.slot(), &self.job, &self.future]);
    }

    fn clear(&self) {
        drop(self.end());
        self.job.clear();
        self.future.clear();
    }
}

impl Drop for ExecutorFuture {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl ExecutorFuture {
    fn create(core: &Core, job: &Ref, future: &Ref) -> Result<Ref, Raised> {
        let link = native::create(ExecutorFuture {
            weaklist: WeakList::new(),
            event_loop: LoopSlot::new(core.loop_ref()),
            job: Slot::new(Some(job.clone_ref())),
            future: Slot::new(Some(future.clone_ref())),
        })?;
        core.inbox.await_job();
        if let Some(link) = link.downcast::<ExecutorFuture>() {
            link.track();
        }
        Ok(link)
    }

    /// The job is no longer awaited. Returns its loop.
    fn end(&self) -> Option<LoopRef> {
        self.event_loop.take().inspect(|event_loop| event_loop.outside().inbox.end_job())
    }
}

/// The job is done. Called on any attached thread.
fn job_done(this: This<'_, ExecutorFuture>) -> Result<(), Raised> {
    let is_closed = |event_loop: &LoopRef| event_loop.object().hold(|| event_loop.core().is_closed());
    let Some(event_loop) = this.event_loop.get().filter(|event_loop| !is_closed(event_loop)) else {
        return Ok(());
    };
    if KNOWN.get().is_some_and(|known| known.copies_at_once)
        && imports()._get_running_loop.call(&[])?.is(event_loop.object())
    {
        return copy(this);
    }
    event_loop.object().call_method(&imports().call_soon_threadsafe, &[this.object()]).map(drop)
}

/// asyncio's future is done. If it was cancelled, the job is cancelled too.
fn future_done(this: This<'_, ExecutorFuture>, future: &Ref) -> Result<(), Raised> {
    let Some(job) = this.job.get() else { return Ok(()) };
    if is_true(future, &imports().cancelled)? {
        job.call_method(&imports().cancel, &[])?;
    }
    Ok(())
}

/// Copies the result of the job to asyncio's future, and empties the object. Called on the loop's thread.
fn copy(this: This<'_, ExecutorFuture>) -> Result<(), Raised> {
    let (job, future) = (this.job.take(), this.future.take());
    let event_loop = this.end();
    let (Some(known), Some(job), Some(future)) = (KNOWN.get(), job, future) else { return Ok(()) };
    let names = imports();
    if let Some(result) = known.result_of(&job)?
        && !is_true(&future, &names.done)?
    {
        // `future_done` would have nothing to do.
        future.call_method(&names.remove_done_callback, &[this.object()])?;
        future.call_method(&names.set_result, &[result.borrow()])?;
    } else {
        known.copy_state.current()?.call(&[job.borrow(), future.borrow()])?;
    }
    drop(event_loop);
    Ok(())
}

/// Calls a method of asyncio's own future that returns a bool.
fn is_true(future: &Ref, method: &Ref) -> Result<bool, Raised> {
    Ok(future.call_method(method, &[])?.is(&boolean(true)))
}

impl Known {
    /// The result of the job. `None` if the job has failed or was cancelled, or if a patch has to see the access.
    fn result_of(&self, job: &Ref) -> Result<Option<Ref>, Raised> {
        if !self.copy_state.is_unpatched()?
            || !self.job.is_unpatched_on(job)?
            || !self.job.get(job, STATE)?.is(&self.finished)
            || !self.job.get(job, EXCEPTION)?.is_none()
        {
            return Ok(None);
        }
        self.job.get(job, RESULT).map(Some)
    }

    /// May an [`ExecutorFuture`] replace asyncio's functions for this job?
    fn can_replace(&self, job: &Ref) -> Result<bool, Raised> {
        Ok(self.job.is_unpatched_on(job)?
            && WRAP_FUTURE.get().map_or(Ok(false), Function::is_unpatched)?
            && self.chain_future.is_unpatched()?
            && self.is_unfinished(job)?)
    }

    fn is_unfinished(&self, job: &Ref) -> Result<bool, Raised> {
        let state = self.job.get(job, STATE)?;
        Ok(state.is(&self.pending) || state.is(&self.running))
    }

    /// `job.add_done_callback(callback)`. Python's method holds a lock, so that the job cannot end between the check of
    /// its state and the append to its list of callbacks. Here the GIL prevents that, if there is one: nothing in between
    /// releases it.
    fn add_done_callback(&self, job: &Ref, callback: &Ref) -> Result<(), Raised> {
        let callbacks = self.job.get(job, CALLBACKS)?;
        if !FREE_THREADED && self.is_unfinished(job)? && callbacks.is_exact_list() {
            // SAFETY: a list and a live object; -1 with an error set means failure.
            return status(unsafe { ffi::PyList_Append(callbacks.as_ptr(), callback.as_ptr()) });
        }
        job.call_method(&imports().add_done_callback, &[callback.borrow()]).map(drop)
    }
}

/// `asyncio.futures.wrap_future(job, loop=core)`.
fn wrap(core: This<'_, Core>, job: Borrowed<'_>) -> Result<Ref, Raised> {
    let names = imports();
    let known = match KNOWN.get() {
        Some(known) if known.can_replace(&job)? => known,
        _ => return call_asyncio_wrap(core, job),
    };
    let future = core.object().call_method(&names.create_future, &[])?;
    if !future.is_exactly(&names.future) {
        known.chain_future.current()?.call(&[job, future.borrow()])?;
        return Ok(future);
    }
    let link = ExecutorFuture::create(&core, &job, &future)?;
    future.call_method(&names.add_done_callback, &[link.borrow()])?;
    known.add_done_callback(&job, &link)?;
    Ok(future)
}

fn call_asyncio_wrap(core: This<'_, Core>, job: Borrowed<'_>) -> Result<Ref, Raised> {
    let wrap_future = match WRAP_FUTURE.get() {
        Some(function) => function.current()?,
        None => unreachable!("the function is recorded when the type is created"),
    };
    wrap_future.call_keywords([job], &imports().future_keywords, [core.object()])
}

/// The object was called. The loop passes no argument, and each of the two futures passes itself.
fn called(
    this: This<'_, ExecutorFuture>,
    arguments: Borrowed<'_>,
    keywords: Option<Borrowed<'_>>,
) -> Result<(), Raised> {
    match (arguments.tuple_items(), keywords) {
        (Some([]), None) => copy(this),
        (Some([done]), None) if done.as_ptr() == this.job.as_ptr() => job_done(this),
        (Some([done]), None) if done.as_ptr() == this.future.as_ptr() => future_done(this, done),
        // The result was copied before, so there is nothing left to do.
        (Some([_]), None) => Ok(()),
        _ => Err(Exception::TypeError.raise("expected one future, or nothing")),
    }
}

/// The methods that are added to the loop class.
pub(crate) const METHODS: &[Method<Core>] =
    &[Method::one_arg(c"_chain", wrap, c"_chain(job, /)\n\nasyncio.futures.wrap_future(job, loop=self).")];

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    // `repr(future)` and the log show the callback with the name and the place of asyncio's function.
    let name = |_: This<'_, ExecutorFuture>| match KNOWN.get() {
        Some(known) => known.shown.getattr(&interned("__qualname__")?),
        None => Err(Exception::AttributeError.raise("__qualname__")),
    };
    let function = |_: This<'_, ExecutorFuture>| match KNOWN.get() {
        Some(known) => Ok(known.shown.clone_ref()),
        None => Err(Exception::AttributeError.raise("__wrapped__")),
    };
    ClassSpec::<ExecutorFuture>::new(c"wakeloop._core.ExecutorFuture")
        .attributes(&[
            Attribute::read_only(c"__qualname__", name),
            Attribute::read_only(c"__wrapped__", function),
        ])
        .slots(&[TypeSlot::dealloc(), TypeSlot::call(called)])
        .slots(&TypeSlot::collected())
        .weaklist(field!(ExecutorFuture, weaklist))
        .build(py)?;
    WRAP_FUTURE.set(Function::in_module(py, "asyncio.futures", "wrap_future")?);
    Ok(())
}

/// Records the classes and functions. Called once, by `wakeloop._loop.executor`, if they are the ones that it knows.
#[pyfunction]
pub(crate) fn chain_jobs(
    py: Python<'_>,
    job: (Bound<'_, PyAny>, Vec<String>, Vec<String>),
    states: [Bound<'_, PyAny>; 3],
    copies_at_once: bool,
    shown: Bound<'_, PyAny>,
) -> PyResult<()> {
    let function = |name| Function::in_module(py, "asyncio.futures", name);
    let [pending, running, finished] = states.map(Ref::from);
    let (kind, methods, attributes) = job;
    let methods: Vec<_> = methods.iter().map(String::as_str).collect();
    KNOWN.set(Known {
        job: Class::init(kind, &methods, &attributes)?,
        pending,
        running,
        finished,
        chain_future: function("_chain_future")?,
        copy_state: function("_copy_future_state")?,
        copies_at_once,
        shown: shown.into(),
    });
    Ok(())
}
